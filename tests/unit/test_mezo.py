"""The estimate of MeZO, and what changes from step to step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from client.estimators import prge
from client.estimators.mezo import (
    learning_rate_at,
    mezo_estimator,
    queries_at,
)
from client.estimators.prge import LossRequest, run_estimator

SEEDS = np.array([5, 2**63, 7], np.uint64)


def losses_of(request: LossRequest) -> NDArray[np.float64]:
    """Any function of seed, sign and batch."""
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


@given(st.integers(1, 3000), st.floats(1e-8, 10))
def test_the_linear_learning_rate_falls_by_equal_parts(steps: int, first: float) -> None:
    rates = [learning_rate_at(step, steps, first, "linear") for step in range(steps)]
    assert rates[0] == first
    np.testing.assert_allclose([*rates, 0.0], np.linspace(first, 0, steps + 1), atol=1e-12 * first)
    assert {learning_rate_at(step, steps, first, "constant") for step in range(steps)} == {first}
