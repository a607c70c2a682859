"""The attacks of the privacy measurements find what is there, and nothing where nothing is."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.privacy.attacks import (
    InformedServer,
    Observations,
    Public,
    area_under_curve,
    cosine,
    noise_variance,
    recover_gradient,
    score_by_batches,
    top_precision,
)
from benchmarks.privacy.scalars import quantized

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
