"""The attacks of the privacy measurements find what is there, and nothing where nothing is."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from benchmarks.privacy.attacks import (
    LABELS,
    SCALARS,
    attack_labels,
    attack_scalars,
    fits,
    interval,
    tables,
)
from benchmarks.privacy.curious_server import (
    InformedServer,
    Observations,
    Public,
    area_under_curve,
    cosine,
    found_first,
    noise_variance,
    recover_gradient,
    score_by_batches,
    tell_classes,
    top_precision,
)
from benchmarks.privacy.linear_texts import Texts
from benchmarks.privacy.scalars import (
    CONDITIONS,
    ServerRecord,
    instruction_for,
    quantized,
    take_steps,
)
from benchmarks.privacy.stages import ALL, Condition, Stage

ELEMENTS, EXAMPLES, QUERIES = 12, 8, 4


def observed(steps: int, batch: int, seed: int = 0) -> tuple[Observations, Public, np.ndarray]:
    """A client of Gaussian gradients that do not change; its examples are the first candidates."""
    rng = np.random.default_rng(seed)
    scale = np.linspace(0.5, 2.0, ELEMENTS)
    texts = rng.standard_normal((5 * EXAMPLES, ELEMENTS)) * scale
    z = rng.standard_normal((steps * QUERIES, ELEMENTS))
    batches = np.zeros((steps, EXAMPLES), np.bool_)
    for step in range(steps):
        batches[step, rng.permutation(EXAMPLES)[:batch]] = True
    gradients = (batches @ texts[:EXAMPLES]) / batch
    scalars = (z.reshape(steps, QUERIES, ELEMENTS) @ gradients[:, :, None]).ravel()
    observations = Observations(z, scalars, 0 * scalars, texts @ z.T, batches)
    public = Public(np.zeros(ELEMENTS), np.diag(scale**2))
    return observations, public, texts[:EXAMPLES].mean(0)


def test_as_many_scalars_as_trained_numbers_determine_the_gradient_of_all_examples() -> None:
    observations, public, truth = observed(steps=4, batch=EXAMPLES)
    few = observations.first(1)
    assert few.scalars.shape == (QUERIES,)
    noise = 1e-6
    assert cosine(recover_gradient(observations, noise), truth) > 0.999
    assert cosine(recover_gradient(few, noise), truth) < 0.9
    assert cosine(InformedServer(observations, public).recover_gradient(), truth) > 0.95


@pytest.mark.parametrize("batch", [2, EXAMPLES])
def test_examples_rank_before_other_texts(batch: int) -> None:
    curves = []
    for seed in range(8):
        observations, public, _ = observed(steps=24, batch=batch, seed=seed)
        scores = InformedServer(observations, public).score_candidates()
        curves.append(area_under_curve(scores, EXAMPLES))
    assert np.mean(curves) > 0.7


def test_who_knows_the_batches_recognises_more_than_who_does_not() -> None:
    without, knowing = [], []
    for seed in range(8):
        observations, public, _ = observed(steps=24, batch=2, seed=seed)
        scores = InformedServer(observations, public).score_candidates()
        without.append(area_under_curve(scores, EXAMPLES))
        knowing.append(area_under_curve(score_by_batches(observations, public), EXAMPLES))
    assert np.mean(knowing) > np.mean(without)


def test_nothing_is_found_in_scalars_of_others() -> None:
    curves = []
    for seed in range(16):
        observations, public, _ = observed(steps=4, batch=EXAMPLES, seed=seed)
        others = observed(steps=4, batch=EXAMPLES, seed=100 + seed)[0]
        mixed = replace(observations, candidates=others.candidates)
        scores = InformedServer(mixed, public).score_candidates()
        curves.append(area_under_curve(scores, EXAMPLES))
    assert abs(np.mean(curves) - 0.5) < 0.15


def test_random_batches_are_noise_and_all_examples_almost_none() -> None:
    batches, public, _ = observed(steps=2, batch=2)
    everything, _, _ = observed(steps=2, batch=EXAMPLES)
    assert noise_variance(batches, public) > 30 * noise_variance(everything, public)


def test_the_figures_of_a_ranking() -> None:
    scores = np.array([3.0, 1.0, 2.0, 0.0])
    assert area_under_curve(scores, 2) == 0.75
    assert area_under_curve(np.zeros(4), 2) == 0.5
    assert top_precision(scores, 2) == 0.5


@pytest.mark.parametrize(("bits", "levels"), [(1, 2), (4, 15), (8, 255)])
def test_rounded_scalars_have_few_values(bits: int, levels: int) -> None:
    gradients = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    rounded = quantized(gradients, bits)
    assert len(np.unique(rounded)) <= levels
    assert cosine(rounded.astype(float), gradients.astype(float)) > 0.75
    assert quantized(gradients, 0) is gradients


def test_components_are_taken_for_derivatives_of_the_clients_loss() -> None:
    own, public, candidates = (linear_texts(count, seed=count) for count in (20, 200, 40))
    d = own.gradients.shape[1]
    record = ServerRecord([], [], [], [], [])
    (condition,) = (one for one in CONDITIONS if one.name == "components")
    whole = replace(condition, queries=d, learning_rate=1e-5)
    instruction = instruction_for(whole, seed=0, number=1, clip=0.0)
    start = np.zeros(d)
    end = take_steps(own, instruction, 0, start, 0, record, public, candidates)
    seen = record.observations()
    factor = np.square(public.gradients).sum(1).mean() / np.square(own.gradients).sum(1).mean()
    derivatives = seen.directions @ own.slope(start)
    assert seen.scalars == pytest.approx(factor * derivatives, rel=1e-2)
    assert seen.expected == pytest.approx(seen.directions @ public.slope(start), rel=1e-2)
    assert cosine(recover_gradient(seen, 1e-9), own.slope(start)) > 0.999
    assert own.loss(end) < own.loss(start)


def test_the_side_of_the_middle_tells_classes() -> None:
    one, other = np.array([[1.0, 5.0], [1.0, 3.0]]), np.array([[-1.0, 4.0], [-1.0, 4.0]])
    assert tell_classes(np.array([[0.2, 9.0], [-0.2, 9.0]]), one, other).tolist() == [True, False]


def test_the_candidate_with_the_highest_score_is_a_member_or_not() -> None:
    assert found_first(np.array([3.0, 1.0, 2.0]), 1) == 1
    assert found_first(np.array([1.0, 3.0, 2.0]), 1) == 0


def linear_texts(count: int, seed: int) -> Texts:
    rng = np.random.default_rng(seed)
    gradients = 1 + rng.standard_normal((count, 16))
    return Texts(gradients, np.zeros(count), np.tile([0, 1], count // 2))


def test_noise_hides_what_a_report_shows() -> None:
    train, public = linear_texts(2600, 0), linear_texts(400, 1)
    condition = Condition("readout", 10, ALL, 2, 16)
    masked = Stage(1, True, masks=True)
    stages = Stage(), Stage(8), Stage(1, True), Stage(8, True, 0.1), masked
    found = dict(attack_scalars(condition, train, public, stages, seed=0))
    plain, _, clipped, noised, hidden = (found[stage] for stage in stages)
    assert plain["ratio"] == 2
    assert plain["cosine"] > 0.95
    assert plain["auc"] > 0.7
    assert clipped["cosine"] > 0.9
    assert noised["cosine"] < 0.9
    assert noised["auc"] < plain["auc"] - 0.1
    assert abs(hidden["auc"] - 0.5) < 0.25
    assert hidden["informed"] == pytest.approx(hidden["public"], abs=1e-3)


def test_labels_are_told_by_numbers_that_depend_on_them() -> None:
    train, public = linear_texts(600, 0), linear_texts(400, 1)
    told: dict[tuple[Stage, str], float] = {}
    for stage, number, share in attack_labels(
        train,
        public,
        [Stage(), Stage(1, True), Stage(1, True, 0.1), Stage(1, True, masks=True)],
        seed=0,
    ):
        told[stage, number] = share
    assert told[Stage(), "projected gradients"] > 0.95
    assert told[Stage(1, True), "projected gradients"] > 0.95
    assert told[Stage(1, True, 0.1), "projected gradients"] < 0.8
    assert told[Stage(1, True, masks=True), "projected gradients"] < 0.8
    assert told[Stage(), "evaluation: confusion counts"] == 1.0
    # the number of examples is the same for all, so that one answer is given for all
    assert abs(told[Stage(), "count"] - 0.5) < 0.25


def test_stages_are_measured_where_sentences_are_left() -> None:
    condition = Condition("readout", 50, ALL, 1, 1)
    assert fits(condition, Stage(8), 3000)
    assert not fits(condition, Stage(64), 3000)


def test_tables_have_means_and_intervals() -> None:
    assert interval([0.5]) == "0.50"
    assert interval([0.4, 0.6], 100, 0) == "50 ± 127"  # 12.706 times the standard error of 0.1
    row = {"attack": SCALARS, "condition": asdict(Condition("readout", 10, ALL, 1, 32)), "seed": 0}
    row |= {"stage": asdict(Stage(8, True, 2.0)), "ratio": 0.0833, "cosine": 0.5, "informed": 0.6}
    row |= {"public": 0.25, "auc": 0.75, "first": 1.0}
    label = {
        "attack": LABELS,
        "part": "inner",
        "seed": 0,
        "stage": asdict(Stage()),
        "number": "loss",
        "told": 0.6,
    }
    lines = tables([row, label]).splitlines()
    assert lines[1] == (
        "readout, 10 sentences, batch all, 1 × 32 scalars, ratio 0.083; public sentences alone 0.25"
    )
    assert "| sum over 8, clipped, ε = 2 | 0.50 | 0.60 | 75 | 100 |" in lines
    assert "| one client's report |  | 60 |  |  |  |  |" in lines
