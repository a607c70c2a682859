"""MeZO's estimate, and its changes from step to step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from samara.client.estimators import prge
from samara.client.estimators.mezo import (
    learning_rate_at,
    mezo_estimator,
    one_point_estimator,
    queries_at,
)
from samara.client.estimators.prge import LossRequest, run_estimator

SEEDS = np.array([5, 2**63, 7], np.uint64)


def losses_of(request: LossRequest) -> NDArray[np.float64]:
    """An arbitrary function of seed, sign and batch."""
    own = np.sin(request.seeds.astype(np.float64)) + request.batch.sum()
    return np.concatenate([own + request.epsilon, own * 2])


def test_every_direction_has_a_batch_of_its_own() -> None:
    batches = np.array([[1, 2], [3, 4], [0, 9]])
    requests = []

    def noted(request: LossRequest) -> NDArray[np.float64]:
        requests.append(request)
        return losses_of(request)

    found = run_estimator(mezo_estimator(SEEDS, batches, 0.5), noted)
    assert [request.seeds.tolist() for request in requests] == [[seed] for seed in SEEDS.tolist()]
    np.testing.assert_array_equal([request.batch for request in requests], batches)
    losses = np.array([losses_of(request) for request in requests])
    np.testing.assert_array_equal(found.gradients, (losses[:, 0] - losses[:, 1]).astype(np.float32))
    assert found.gradients.dtype == np.float32
    assert found.mean_loss == losses.mean()


def test_with_one_batch_it_is_the_estimate_of_p_rge() -> None:
    batch = np.array([4, 1])
    one = run_estimator(mezo_estimator(SEEDS, np.tile(batch, (3, 1)), 0.01), losses_of)
    other = run_estimator(prge.prge_estimator(SEEDS, batch, 0.01), losses_of)
    np.testing.assert_array_equal(one.gradients, other.gradients)
    assert one.mean_loss == pytest.approx(other.mean_loss)


@given(st.integers(1, 3000), st.integers(1, 64))
def test_the_linear_schedule_of_directions_rises_to_the_most(steps: int, most: int) -> None:
    numbers = [queries_at(step, steps, most, "linear") for step in range(steps)]
    assert numbers[0] >= 1
    assert numbers[-1] == most
    assert numbers == sorted(numbers)
    assert sum(numbers) == pytest.approx(most * (steps + 1) / 2, abs=steps)
    assert {queries_at(step, steps, most, "constant") for step in range(steps)} == {most}


def test_one_point_compares_with_the_step_before() -> None:
    batches, requests = np.array([[1], [2], [3]]), []

    def losses(request: LossRequest) -> NDArray[np.float64]:
        requests.append(request)
        return losses_of(request)[:1]

    first = run_estimator(one_point_estimator(SEEDS, batches, 0.5, None), losses)
    assert [request.signs for request in requests] == [(1,)] * 3
    own = np.array([losses_of(request)[0] for request in requests])
    assert first.mean_loss == own.mean()
    np.testing.assert_array_equal(first.gradients, ((own - own.mean()) / 0.5).astype(np.float32))
    next_ = run_estimator(one_point_estimator(SEEDS[:1], batches[:1], 0.5, 7.25), losses)
    np.testing.assert_array_equal(next_.gradients, [np.float32((own[0] - 7.25) / 0.5)])


def test_one_point_is_unbiased_on_a_quadratic() -> None:
    """If L(θ) = θᵀ·H·θ/2 + b·θ, then E ĝ = ∇L.

    Definition 8 smooths the loss, which does not change the gradient of a quadratic.
    """
    rng = np.random.default_rng(0)
    d, count, epsilon = 3, 400_000, 0.5
    root = rng.normal(size=(d, d))
    hessian, linear, theta = root @ root.T, rng.normal(size=d), rng.normal(size=d)
    z = rng.normal(size=(count, d))
    points = theta + epsilon * z
    losses = np.einsum("ni,ij,nj->n", points, hessian, points) / 2 + points @ linear
    batch = np.zeros((1, 1), np.int64)  # the estimator itself once; the rest by its formula
    estimator = one_point_estimator(SEEDS[:1], batch, epsilon, losses[0])
    found = run_estimator(estimator, lambda _: losses[1:2])
    assert found.gradients[0] == np.float32((losses[1] - losses[0]) / epsilon)
    estimates = (np.diff(losses) / epsilon)[:, None] * z[1:]
    error = estimates.std(axis=0) / np.sqrt(count)
    # consecutive estimates share a loss, so the error of the mean is not smaller than that
    assert (np.abs(estimates.mean(axis=0) - (hessian @ theta + linear)) < 6 * error).all()


@given(st.integers(1, 3000), st.floats(1e-8, 10), st.integers(0, 40))
def test_a_warm_up_rises_to_the_highest_rate_from_where_it_falls(
    steps: int, highest: float, warm_up: int
) -> None:
    steps += warm_up
    for schedule in ("constant", "linear", "cosine"):
        rates = [learning_rate_at(t, steps, highest, schedule, warm_up) for t in range(steps)]
        parts = np.arange(1, warm_up + 1) / max(warm_up, 1)
        np.testing.assert_allclose(rates[:warm_up], highest * parts)
        assert rates[warm_up] == pytest.approx(highest)
        rest = rates[warm_up:]
        assert rest == sorted(rest, reverse=True)
    part = np.arange(steps - warm_up) / (steps - warm_up)
    cosine = highest * (1 + np.cos(np.pi * part)) / 2
    np.testing.assert_allclose(rest, cosine, rtol=1e-6, atol=1e-12)


@given(st.integers(1, 3000), st.floats(1e-8, 10))
def test_the_linear_learning_rate_falls_by_equal_parts(steps: int, first: float) -> None:
    rates = [learning_rate_at(step, steps, first, "linear") for step in range(steps)]
    assert rates[0] == first
    np.testing.assert_allclose([*rates, 0.0], np.linspace(first, 0, steps + 1), atol=1e-12 * first)
    assert {learning_rate_at(step, steps, first, "constant") for step in range(steps)} == {first}
