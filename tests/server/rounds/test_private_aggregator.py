"""The private aggregator computes everything from a noised sum that is first written to disk."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from private_rounds import ASKED, CLIP, ROUNDS, aggregator, gradients, hidden, none_left, vectors

from samara.server.rounds.private_aggregator import PrivateAggregator
from samara.server.rounds.releases import RELEASES_FILE, describe_spent, read_releases
from samara.server.rounds.report_validation import ValidatedReplies
from samara.shared.errors import LedgerError, ReplayError, TrainingError
from samara.shared.privacy.accountant import epsilon_of, rho_of
from samara.shared.privacy.adaptive_clip import next_clip
from samara.shared.privacy.vector import SENSITIVITY
from samara.shared.protocol.frames.instructions import TrainInstruction, token_of
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.frames.vector_report import VectorReport


def test_the_delta_is_that_of_the_mean_of_clipped_vectors(tmp_path: Path) -> None:
    within, beyond = [1.0, 0, 0, 0, -1.0, 0], [0, 0, 30.0, 40.0, 0, 0]
    made = aggregator(tmp_path).aggregate(ASKED, vectors(within, beyond), 1, expected=2)
    clipped = [0, 0, 1.2, 1.6, 0, 0]
    np.testing.assert_allclose(gradients(made), np.mean([within, clipped], axis=0), atol=1e-6)
    assert made.delta.contributors == ()
    assert (made.reports, made.problem) == (2, "")
    assert made.loss == pytest.approx(0.5, abs=1e-6)


def test_noise_is_added_to_every_number_of_the_sum(tmp_path: Path) -> None:
    sigmas: list[tuple[int, int]] = []

    def known(count: int, sigma: int) -> Any:
        sigmas.append((count, sigma))
        return np.arange(1, count + 1).astype(object)

    aggregator(tmp_path, known, noise_multiplier=1.5).aggregate(
        ASKED, vectors([0.0] * 6), 1, expected=1
    )
    assert sigmas == [(9, 3 * SENSITIVITY // 2)]
    (release,) = read_releases(tmp_path / RELEASES_FILE)
    plain = vectors([0.0] * 6).answers[0].vector
    assert (release.sums[0].total - plain).tolist() == list(range(1, 10))


def test_a_release_is_used_again_and_costs_once(tmp_path: Path) -> None:
    """A server is killed between release and ledger; other answers then get no new noise."""
    rng = np.random.default_rng(0)

    def noise(count: int, sigma: int) -> Any:
        return rng.integers(-sigma, sigma, count).astype(object)

    first = aggregator(tmp_path, noise).aggregate(ASKED, vectors([1.0] * 6, [0.0] * 6), 1, 2)
    again = aggregator(tmp_path, none_left).aggregate(ASKED, vectors([0.5] * 6), 1, 2)
    assert again.delta.encode() == first.delta.encode()
    assert (again.observation, again.epsilon) == (first.observation, first.epsilon)
    assert first.epsilon == pytest.approx(epsilon_of(rho_of(1.0), 1e-5))
    assert len(read_releases(tmp_path / RELEASES_FILE)) == 1


def test_a_release_is_on_the_disk_before_the_ledger_is_asked(tmp_path: Path) -> None:
    made = aggregator(tmp_path)
    seen: list[int] = []

    def check(delta: object) -> None:
        seen.append(len(read_releases(tmp_path / RELEASES_FILE)))
        raise ReplayError("it does not fit")

    made._ledger.check = check  # type: ignore[method-assign]
    failed = made.aggregate(ASKED, vectors([1.0] * 6), 1, 1)
    assert seen == [1]
    assert (failed.problem, failed.reports, failed.delta.groups) == ("it does not fit", 0, ())
    assert failed.observation is not None
    assert failed.observation.learning_rate == 0


def test_half_a_release_was_never_used(tmp_path: Path) -> None:
    aggregator(tmp_path).aggregate(ASKED, vectors([1.0] * 6), 1, 1)
    file = tmp_path / RELEASES_FILE
    file.write_bytes(file.read_bytes()[:-30])
    assert aggregator(tmp_path).epsilon == 0
    assert file.read_bytes() == b""


def test_only_the_sum_decides(tmp_path: Path) -> None:
    """Cohorts with different vectors but the same sum give the same round."""
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
    one, other = aggregator(tmp_path / "one"), aggregator(tmp_path / "other")
    first, second = [1.0, 0, 0, 0.5, 0, 0], [0, 0.25, 0, -0.5, 0, 1.0]
    a = one.aggregate(ASKED, vectors(first, second), 1, 2)
    b = other.aggregate(ASKED, vectors(second, first), 1, 2)
    assert a.delta.encode() == b.delta.encode()
    assert a.observation == b.observation
    assert (a.observed, a.loss, a.reports) == ((), b.loss, b.reports)


def test_what_the_step_size_sees_is_noised_or_public(tmp_path: Path) -> None:
    made = aggregator(tmp_path).aggregate(ASKED, vectors([0.6] * 6, [0.6] * 6), 1, 2)
    assert made.observation is not None
    assert asdict(made.observation) == {
        "loss": pytest.approx(0.5, abs=1e-6),
        "mean_square": CLIP**2 / 6,
        "squared_norm": pytest.approx(6 * 0.36 / 9, rel=1e-5),
        "local_squared_norm": CLIP**2 / 9,
        "learning_rate": 0.5,
        "curvature": pytest.approx(2.0, abs=1e-4),
        "directions": 6,
        "loss_noise": 4.0,
        "curvature_noise": 16.0,
        "curvature_is_root": True,
    }


def test_clients_that_dropped_out_are_told_from_noise(tmp_path: Path) -> None:
    """With σ = 4, noise explains 3 missing answers of 4, but not 80 of 100."""
    many = aggregator(tmp_path).aggregate(ASKED, vectors(*[[0.6] * 6] * 20), 1, expected=100)
    assert many.reports == 20
    np.testing.assert_allclose(gradients(many), 0.6, rtol=1e-6)
    (tmp_path / "few").mkdir()
    few = aggregator(tmp_path / "few").aggregate(ASKED, vectors([0.6] * 6), 1, expected=4)
    assert few.reports == 4
    np.testing.assert_allclose(gradients(few), 0.15, rtol=1e-6)


@pytest.mark.parametrize(("expected", "divisor"), [(4, 4), (100, 12)])
def test_a_count_that_noise_has_made_small_makes_no_long_update(
    tmp_path: Path, expected: int, divisor: int
) -> None:
    """A count lowered by 4 σ of noise is rare, but occurs in long runs. Here 3 σ are 12 clients."""

    def low(count: int, sigma: int) -> Any:
        return np.array([0] * (count - 1) + [-4 * sigma], object)

    made = aggregator(tmp_path, low).aggregate(ASKED, vectors(*[[0.6] * 6] * 2), 1, expected)
    assert made.reports == divisor
    np.testing.assert_allclose(gradients(made), 1.2 / divisor, rtol=1e-6)


def test_too_few_reports_release_nothing(tmp_path: Path) -> None:
    made = aggregator(tmp_path, none_left).aggregate(ASKED, vectors([1.0] * 6), 2, expected=4)
    assert made.problem == "the reports are fewer than cohort.minimum"
    assert (made.delta.groups, made.epsilon, made.observation) == ((), 0.0, None)


def test_a_round_beyond_the_budget_is_refused_and_a_released_one_is_not(tmp_path: Path) -> None:
    made = aggregator(tmp_path)
    rounds = [replace(ASKED, round=number) for number in range(1, ROUNDS + 2)]
    for asked in rounds[:ROUNDS]:
        made.check_budget(asked)
        made.aggregate(asked, vectors([1.0] * 6, asked=asked), 1, 1)
    with pytest.raises(TrainingError, match=r"round 4: the run's privacy budget is spent, ε = "):
        made.check_budget(rounds[ROUNDS])
    reopened = aggregator(tmp_path)
    reopened.check_budget(rounds[0])
    with pytest.raises(TrainingError, match="no client is asked"):
        reopened.check_budget(rounds[ROUNDS])
    assert describe_spent(tmp_path) == (
        f"differential privacy: 3 releases, ε = {reopened.epsilon:.3g} so far at δ = 1e-05"
    )


@pytest.mark.parametrize(
    "line",
    [
        b'{"round": 1}\n',
        b'{"round": 1, "token": "00", "noise_multiplier": 1, "delta": 1e-5, "sum": ""}\n',
        b'{"round": 1, "token": "0000000000000000", "noise_multiplier": 0, "delta": 1e-5, '
        b'"sum": ""}\n',
        b'{"round": 1, "token": "0000000000000000", "noise_multiplier": 1, "delta": 1e-5, '
        b'"sum": "x"}\n',
    ],
)
def test_a_damaged_file_of_releases_is_no_fresh_budget(tmp_path: Path, line: bytes) -> None:
    (tmp_path / RELEASES_FILE).write_bytes(line)
    with pytest.raises(LedgerError, match=r"releases\.jsonl:1: damaged"):
        aggregator(tmp_path)


def adaptive(folder: Path, **privacy: Any) -> PrivateAggregator:
    return aggregator(folder, adaptive_clip=True, **privacy)


def asked_with(made: PrivateAggregator, number: int) -> TrainInstruction:
    return replace(ASKED, round=number, joint_clip=made.joint_clip(number))


def indicated(asked: TrainInstruction, *norms: float) -> ValidatedReplies[VectorReport]:
    token = token_of(asked.encode())
    answers = {}
    for client, norm in enumerate(norms):
        gradients = np.array([[norm, 0, 0], [0, 0, 0]], np.float32)
        report = Report(token, client, 10, 0.5, gradients, curvature=4.0)
        answers[client] = hidden(report, asked.joint_clip, has_indicator=True)
    return ValidatedReplies[VectorReport](answers=answers)


@pytest.mark.parametrize(
    ("norms", "factor"),
    [
        ((9.0, 9.0, 9.0, 9.0), math.exp(0.1)),  # none is within the clip
        ((1.0, 1.0, 1.0, 1.0), math.exp(-0.1)),
        ((1.0, 1.0, 9.0, 9.0), 1.0),
    ],
)
def test_an_adaptive_clip_follows_the_median(
    tmp_path: Path, norms: tuple[float, ...], factor: float
) -> None:
    made = adaptive(tmp_path)
    first = asked_with(made, 1)
    assert first.joint_clip == CLIP
    done = made.aggregate(first, indicated(first, *norms), 1, 4)
    assert done.privacy == {"epsilon": made.epsilon, "clip": CLIP}
    assert made.joint_clip(2) == pytest.approx(CLIP * factor)
    assert done.observation is not None
    assert done.observation.mean_square == CLIP**2 / 6


def test_a_continued_run_asks_with_the_same_clip(tmp_path: Path) -> None:
    """A run continues after a kill between release and ledger, and then asks more clients."""
    made = adaptive(tmp_path)
    for number in (1, 2):
        asked = asked_with(made, number)
        made.aggregate(asked, indicated(asked, 9.0, 9.0), 1, 2)
    again = adaptive(tmp_path)
    assert asked_with(again, 2) == asked  # the release of round 2 does not count for round 2
    assert again.joint_clip(3) == made.joint_clip(3) > asked.joint_clip
    repeated = again.aggregate(asked, indicated(asked, 1.0), 1, 9)
    assert repeated.privacy["epsilon"] == made.epsilon
    assert again.joint_clip(3) == made.joint_clip(3)


def test_no_noise_moves_the_clip_by_more_than_its_rate() -> None:
    for within in (-1e9, 1e9):
        assert abs(math.log(next_clip(1.0, within, 10.0))) == pytest.approx(0.1)
    assert next_clip(1e6, -10.0, 10.0) == 1e6
    assert next_clip(1e-6, 10.0, 10.0) == 1e-6
