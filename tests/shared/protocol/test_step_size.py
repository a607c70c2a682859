"""The step size: the loss that it may cost, reverts after a rise, and its record."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samara.shared.errors import SamaraError
from samara.shared.protocol.step_size import (
    FIRST_SHARE,
    MOST_AT_ONCE,
    OUTLIER,
    SETBACK,
    WARM_UP,
    Observation,
    RecordedStepSize,
    StepSize,
    read_observed_clients,
)

QUERIES, STEPS = 4, 400
CALM = Observation(0.7, 1.0, 1 / QUERIES, 1 / QUERIES, 0.0, 3.0, QUERIES)


def after(size: StepSize, seen: list[Observation]) -> StepSize:
    for one in seen:
        size = size.after(replace(one, learning_rate=size.learning_rate))
    return size


def quadratic(size: StepSize, steps: int, factor: float = 1.0) -> tuple[float, float, StepSize]:
    """Minimize ½·Σ h·x² by SPSA with noise; return the loss before and after, and the step size."""
    generator = np.random.default_rng(3)
    curvatures = 1 / np.arange(1, 301)
    x = generator.normal(0, 0.6, 300) * np.sqrt(curvatures) * factor
    kept = [x]

    def loss(x: np.ndarray) -> float:
        return float(0.5 * curvatures @ (x * x)) + 0.1

    before = loss(x)
    for step in range(steps):
        z = generator.normal(size=(QUERIES, 300))
        noise = generator.normal(0, 0.1, 300)
        g = (z @ (curvatures * x + noise)).astype(np.float32)
        bend = float(np.mean(z * z @ curvatures))
        g, rate = size.clipped(g), size.learning_rate
        measured = bend if size.measures_curvature(step, QUERIES) else None
        size = size.after(Observation.from_step(loss(x), g, rate, measured))
        x = kept[size.back_to] if size.back_to is not None else x - rate / QUERIES * g @ z
        kept.append(x)
    return before, loss(x), size


def test_nothing_moves_before_the_curvature_is_known() -> None:
    steps = WARM_UP // QUERIES
    size = after(StepSize(STEPS), [CALM] * (steps - 1))
    assert size.warming_up
    assert size.learning_rate == size.clip == 0
    size = after(size, [CALM])
    assert size.learning_rate > 0
    assert size.clip == pytest.approx(OUTLIER)


def test_a_short_run_does_not_wait_long() -> None:
    size = after(StepSize(10), [CALM])
    assert not size.warming_up
    assert size.learning_rate > 0
    assert after(StepSize(10), [replace(CALM, curvature=None, directions=0)]).warming_up


def test_an_even_run_spends_its_budget_and_little_more() -> None:
    size = after(StepSize(STEPS), [CALM] * STEPS)
    budget = FIRST_SHARE * CALM.loss
    assert 0.8 * budget < size.spent < 1.2 * budget


@given(curvature=st.floats(0.01, 1e4), square=st.floats(1e-4, 1e4), loss=st.floats(1e-3, 1e3))
def test_the_rate_follows_the_scales(curvature: float, square: float, loss: float) -> None:
    """η = √(2·price / (tr(H)·squared norm)): each factor changes η as the formula says."""
    plain = after(StepSize(STEPS), [CALM] * 20).learning_rate
    seen = replace(
        CALM,
        curvature=3 * curvature,
        mean_square=square,
        squared_norm=square / QUERIES,
        local_squared_norm=square / QUERIES,
        loss=0.7 * loss,
    )
    rate = after(StepSize(STEPS), [seen] * 20).learning_rate
    assert rate == pytest.approx(plain * np.sqrt(loss / (curvature * square)), rel=1e-6)


def test_no_step_reaches_far_beyond_the_points_that_are_tried() -> None:
    flat = replace(CALM, curvature=1e-9)
    size = after(StepSize(STEPS, epsilon=0.01), [flat] * 20)
    assert size.learning_rate * np.sqrt(CALM.local_squared_norm) == pytest.approx(0.3)
    assert after(StepSize(STEPS), [flat] * 20).learning_rate > 10 * size.learning_rate


def test_more_averaging_allows_longer_steps() -> None:
    """Eight clients with independent directions have an eighth of the squared norm."""
    one = after(StepSize(STEPS), [CALM] * 20)
    eight = after(StepSize(STEPS), [replace(CALM, squared_norm=CALM.squared_norm / 8)] * 20)
    assert eight.learning_rate == pytest.approx(np.sqrt(8) * one.learning_rate)


def test_local_steps_bound_the_rate() -> None:
    """The limit holds for any number of clients, because each first takes its own local steps."""
    many = replace(CALM, squared_norm=CALM.squared_norm / 1e6)
    rate = after(StepSize(STEPS), [many] * 20).learning_rate
    assert 0.5 * 3 * rate**2 * CALM.local_squared_norm <= 1.001 * MOST_AT_ONCE * CALM.loss


def test_a_gain_raises_the_budget() -> None:
    falling = [replace(CALM, loss=0.7 - 0.002 * step) for step in range(200)]
    assert after(StepSize(STEPS), falling).spent > 1.5 * after(StepSize(STEPS), [CALM] * 200).spent


@pytest.mark.parametrize("curvature", [-5.0, 0.0])
def test_a_curvature_that_is_not_positive_leaves_a_rate(curvature: float) -> None:
    seen = [replace(CALM, curvature=curvature + (-1) ** step) for step in range(20)]
    rate = after(StepSize(STEPS), seen).learning_rate
    assert 0 < rate < np.inf


def test_outliers_are_clipped_to_their_running_scale() -> None:
    size = after(StepSize(STEPS), [CALM] * 20)
    wild = np.array([0.5, -100.0, 3.0, np.inf], np.float32)
    np.testing.assert_allclose(size.clipped(wild), [0.5, -OUTLIER, 3.0, OUTLIER])


def test_a_rise_returns_to_where_the_loss_was_lowest() -> None:
    good = [replace(CALM, loss=0.7 - 0.001 * step) for step in range(100)]
    size = after(StepSize(STEPS), good)
    rate = size.learning_rate
    while size.back_to is None:
        size = after(size, [replace(CALM, loss=1.5)])
    assert 90 <= size.back_to <= 100
    assert size.learning_rate < rate * np.sqrt(SETBACK) * 1.1
    assert after(size, [CALM]).back_to is None


def test_noise_is_no_rise() -> None:
    generator = np.random.default_rng(0)
    size = StepSize(STEPS)
    for loss in generator.normal(0.7, 0.25, STEPS):
        size = after(size, [replace(CALM, loss=float(loss))])
        assert size.back_to is None


@pytest.mark.parametrize("steps", [5, 30, 200])
def test_small_batches_are_no_rise_where_the_first_loss_was_a_lucky_one(steps: int) -> None:
    """Losses vary like those of POPQUORN's readers with four examples; few rounds are reverted."""
    generator, returns = np.random.default_rng(0), 0
    for _ in range(300):
        size = StepSize(steps, given=0.1)
        for loss in generator.gamma(3.0, 0.25, steps):
            size = size.after(replace(CALM, loss=float(loss), curvature=None))
            returns += size.back_to is not None
    assert returns <= 6


def test_a_jump_in_the_first_step_is_taken_back() -> None:
    noise = np.random.default_rng(0).normal(0, 0.02, 20)
    size = StepSize(STEPS, given=100.0).after(replace(CALM, loss=0.7))
    for loss in 0.95 + noise:
        size = size.after(replace(CALM, loss=float(loss)))
        if size.back_to is not None:
            break
    assert (size.back_to, size.learning_rate) == (0, pytest.approx(100.0 * SETBACK))
    calm = StepSize(STEPS, given=100.0)
    for loss in 0.7 + noise:
        calm = calm.after(replace(CALM, loss=float(loss)))
        assert calm.back_to is None


def test_a_loss_that_is_not_finite_returns_at_once() -> None:
    size = after(StepSize(STEPS), [CALM] * 20)
    assert after(size, [replace(CALM, loss=np.nan)]).back_to is not None


@pytest.mark.parametrize("given", [None, 0.3])
def test_rounds_without_an_observation_before_the_first_are_no_rise(given: float | None) -> None:
    size = StepSize(STEPS, given=given)
    for _ in range(3):
        size = size.after(None)
    for _ in range(50):
        size = after(size, [CALM])
        assert size.back_to is None
    assert size.learning_rate > 0


def test_a_rate_given_by_hand_is_kept_and_lowered_by_a_rise_only() -> None:
    size = StepSize(STEPS, given=0.3)
    assert not size.measures_curvature(0, QUERIES)
    size = after(size, [replace(CALM, curvature=None)] * 50)
    assert (size.learning_rate, size.clip) == (0.3, 0)
    while size.back_to is None:
        size = after(size, [replace(CALM, loss=2.0, curvature=None)])
    assert size.learning_rate == pytest.approx(0.3 * SETBACK)


def test_a_noisy_quadratic_is_descended_without_a_setting() -> None:
    before, end, size = quadratic(StepSize(STEPS), STEPS)
    assert end < before - 0.3 * (before - 0.1)
    assert size._share == 1


def test_a_thousandfold_rate_recovers() -> None:
    found = quadratic(StepSize(STEPS), STEPS)[2].learning_rate
    before, end, size = quadratic(StepSize(STEPS, given=1000 * found), STEPS)
    assert size._share < 1
    assert end <= before


def test_the_centre_costs_about_three_percent_of_the_rows() -> None:
    size = after(StepSize(STEPS), [CALM] * 20)
    assert [size.curvature_every(q) for q in (1, 4, 8, 16, 64)] == [16, 4, 2, 1, 1]
    assert [size.curvature_every(q, "forward") for q in (1, 64)] == [16, 16]


def test_a_curvature_that_is_not_known_to_be_positive_counts_as_its_error() -> None:
    def measured(*values: float) -> StepSize:
        return after(StepSize(STEPS), [replace(CALM, curvature=value) for value in values])

    assert measured(-9.0).curvature == measured(9.0).curvature == 9.0
    assert measured(*[9.0, 8.0] * 10).curvature == pytest.approx(8.5, abs=0.1)
    for values in ([-9.0, -8.0] * 10, [9.0, -8.0] * 10):
        size = measured(*values)
        assert size.curvature == size._curvature.error


def test_a_record_gives_the_step_size_back(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    record = RecordedStepSize(StepSize(STEPS), file)
    for step in range(30):
        record.record(
            replace(CALM, loss=0.7 - 0.001 * step, learning_rate=record.size.learning_rate)
        )
    assert RecordedStepSize(StepSize(STEPS), file, 30).size == record.size
    # The last step was never written, and gives the same observation when it is tried again.
    again = RecordedStepSize(StepSize(STEPS), file, 29)
    again.record(replace(CALM, loss=0.7 - 0.001 * 29, learning_rate=again.size.learning_rate))
    assert again.size == record.size
    assert RecordedStepSize(StepSize(STEPS), file, 30).size == record.size


def cut_record(file: Path, steps: int, length: int) -> list[str]:
    """Record steps, and cut the last line to a number of bytes; return the lines before it."""
    record = RecordedStepSize(StepSize(STEPS), file)
    for step in range(steps):
        record.record(
            replace(CALM, loss=0.7 - 0.001 * step, learning_rate=record.size.learning_rate)
        )
    *before, last = file.read_text().splitlines(keepends=True)
    file.write_text("".join(before) + last[:length])
    return before


def test_half_a_line_of_a_step_in_the_ledger_is_recovered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "record.jsonl"
    before = cut_record(file, 5, 30)
    recovered = RecordedStepSize(StepSize(STEPS), file, 5)
    assert recovered.size.done == 5
    assert f"{file}: the line of step 5 was cut off" in caplog.text
    assert file.read_text() == "".join(before) + '{"step": 5}\n'
    assert read_observed_clients(file)[5] == []
    recovered.record(CALM)
    assert RecordedStepSize(StepSize(STEPS), file, 6).size == recovered.size
    assert caplog.text.count("cut off") == 1


def test_half_a_line_of_a_step_that_is_repeated_is_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    before = cut_record(file, 5, 30)
    assert RecordedStepSize(StepSize(STEPS), file, 4).size.done == 4
    assert file.read_text() == "".join(before)


def test_half_a_line_does_not_stand_for_two_steps(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    cut_record(file, 5, 30)
    with pytest.raises(SamaraError, match="lacks step 5 of 6"):
        RecordedStepSize(StepSize(STEPS), file, 6)


def test_an_observation_that_lacks_the_end_of_its_line_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    cut_record(file, 5, -1)
    expected = RecordedStepSize(StepSize(STEPS))
    for step in range(5):
        expected.record(
            replace(CALM, loss=0.7 - 0.001 * step, learning_rate=expected.size.learning_rate)
        )
    assert RecordedStepSize(StepSize(STEPS), file, 5).size == expected.size


def test_a_record_that_lacks_a_step_or_is_damaged_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    RecordedStepSize(StepSize(STEPS), file).record(CALM)
    with pytest.raises(SamaraError, match="lacks step 2 of 2; restore the file"):
        RecordedStepSize(StepSize(STEPS), file, 2)
    file.write_text('{"step": 1, "loss": 0.5}\n')
    with pytest.raises(SamaraError, match="damaged"):
        RecordedStepSize(StepSize(STEPS), file, 1)


def test_a_step_size_that_was_set_decreases_from_it_to_zero() -> None:
    sizes = [StepSize(40, given=0.1, decreasing=True, done=done) for done in range(41)]
    rates = [size.learning_rate for size in sizes]
    np.testing.assert_allclose(rates[:40], 0.1 * (39.5 - np.arange(40)) / 40)
    assert rates[40] == rates[39] > 0


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_a_decreasing_step_size_follows_the_steps_that_are_left(share: float) -> None:
    seen = after(StepSize(STEPS), [CALM] * int(share * STEPS))
    falling = replace(seen, decreasing=True)
    left = 2 * (1 - share - 0.5 / STEPS)
    assert falling.learning_rate == pytest.approx(left * seen.learning_rate)


def test_a_decreasing_step_size_moves_no_farther_at_once_either() -> None:
    flat = replace(CALM, curvature=1e-9)
    size = after(StepSize(STEPS, epsilon=0.01, decreasing=True), [flat] * 20)
    assert size.learning_rate == after(StepSize(STEPS, epsilon=0.01), [flat] * 20).learning_rate


def noisy(loss: float, noise: float, curvature: float = 5.0) -> Observation:
    return Observation(
        *(loss, 1.0, 0.1, 0.1, 0.0, curvature, 32), loss_noise=noise, curvature_noise=noise
    )


def test_a_loss_that_noise_explains_is_no_rise() -> None:
    """A loss that is 4.5 higher is a rise, unless its noise has a standard deviation of 1."""
    for noise, rises in ((0.0, True), (1.0, False)):
        size = StepSize(100).after(noisy(0.7, noise)).after(noisy(0.7 + 4.5, noise))
        assert (size.back_to is not None) is rises


def test_the_noise_of_the_first_loss_is_no_rise() -> None:
    """A second loss more than three standard deviations higher is within both losses' noise."""
    first = StepSize(40, given=0.1).after(noisy(0.0, 20.0))
    assert first.after(noisy(75.0, 20.0)).back_to is None
    assert first.after(noisy(130.0, 20.0)).back_to == 0


def test_a_curvature_of_noise_is_taken_as_large_as_the_noise() -> None:
    """Steps stay small until the error of the curvature has fallen."""
    small = StepSize(100).after(noisy(0.7, 0.0, curvature=0.1))
    noised = StepSize(100).after(noisy(0.7, 40.0, curvature=0.1))
    assert small.curvature == pytest.approx(0.1)
    assert noised.curvature == pytest.approx(40.0)
    later = noised
    for _ in range(3):
        later = later.after(noisy(0.7, 40.0, curvature=0.1))
    assert later.curvature == pytest.approx(20.0)
    assert later.learning_rate > noised.learning_rate


def test_a_curvature_that_was_told_by_its_root_is_known_sooner() -> None:
    """Roots are averaged before squaring, so the noise averages away."""
    roots = [replace(noisy(0.7, 2.0, value), curvature_is_root=True) for value in (0.5, -2.0, 4.2)]
    size = after(StepSize(100), roots[:1])
    assert size.curvature == pytest.approx(2.0**2)
    size = after(StepSize(100), roots * 12)
    assert size.curvature == pytest.approx(0.9**2)
    single = replace(CALM, curvature=-3.0, curvature_is_root=True)
    assert after(StepSize(100), [single]).curvature == 9


def spent_by_noise(loss_noise: float, curvature_noise: float, falls_by: float) -> float:
    """Return the loss that noise adds in 40 rounds, on average over 60 runs.

    The loss falls from 0.55 by `falls_by` in the first half of the rounds. The curvature is 0.72.
    """
    rng, total = np.random.default_rng(0), 0.0
    for _ in range(60):
        size = StepSize(40)
        for number in range(40):
            loss = 0.55 - falls_by * min(1, number / 20) + rng.normal() * loss_noise
            root = 0.72**0.5 + rng.normal() * curvature_noise
            seen = Observation(
                *(loss, 1e-3, 1e-4, 1e-4, size.learning_rate, root, 256),
                *(loss_noise, curvature_noise, True),
            )
            total += 0.5 * 0.72 * size.learning_rate**2 * seen.squared_norm
            size = size.after(seen)
    return total / 60


def test_a_gain_is_believed_less_one_standard_error() -> None:
    """With noise of ε = 8, 64 clients show hardly any gain; 1,000 clients show a gain."""
    assert spent_by_noise(0.50, 2.0, falls_by=0.0) < 0.06  # 0.11 if no error were taken off
    found = spent_by_noise(0.032, 0.13, falls_by=0.12)
    assert 0.037 < found < 0.052  # 0.031 if two errors were taken off, 0.057 if none


def test_observations_without_noise_are_recorded_as_before(tmp_path: Path) -> None:
    file = tmp_path / "step_size.jsonl"
    recorded = RecordedStepSize(StepSize(10), file)
    recorded.record(noisy(0.7, 0.0))
    recorded.record(replace(noisy(0.7, 2.0), curvature_is_root=True))
    plain, noised = (json.loads(line) for line in file.read_text().splitlines())
    assert not {"loss_noise", "curvature_is_root"} & set(plain)
    assert (noised["loss_noise"], noised["curvature_noise"]) == (2.0, 2.0)
    assert noised["curvature_is_root"] is True
    assert RecordedStepSize(StepSize(10), file, 2).size == recorded.size
