"""The estimate of P-RGE: the losses that it requests, and the result."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from samara.client.estimators.prge import LossRequest, prge_estimator, run_estimator

SEEDS = np.array([5, 2**63, 7, 11], np.uint64)
BATCH = np.array([3, 1])
EPSILON = 0.25
SLOPES, BENDS = np.array([1.5, -2.0, 0.0, 0.5]), np.array([4.0, 0.0, 2.0, -6.0])
CENTRE = 3.0


def asked(requests: list[LossRequest]) -> Callable[[LossRequest], NDArray[np.float64]]:
    """A loss that is a parabola along every direction; its requests are recorded."""

    def losses_of(request: LossRequest) -> NDArray[np.float64]:
        requests.append(request)
        np.testing.assert_array_equal(request.batch, BATCH)
        if not len(request.seeds):
            return np.array([CENTRE])
        np.testing.assert_array_equal(request.seeds, SEEDS)
        steps = request.epsilon * np.array(request.signs)[:, None]
        return (CENTRE + steps * SLOPES + 0.5 * steps**2 * BENDS).ravel()

    return losses_of


def points(requests: list[LossRequest]) -> int:
    return sum(len(request.signs) * len(request.seeds) or 1 for request in requests)


def test_central_differences_are_the_slopes_of_parabolas() -> None:
    requests: list[LossRequest] = []
    found = run_estimator(prge_estimator(SEEDS, BATCH, EPSILON), asked(requests))
    np.testing.assert_array_equal(found.gradients, SLOPES.astype(np.float32))
    assert points(requests) == 2 * len(SEEDS)
    assert found.curvature is None


def test_forward_differences_share_the_centre_and_err_by_the_curvature() -> None:
    requests: list[LossRequest] = []
    found = run_estimator(
        prge_estimator(SEEDS, BATCH, EPSILON, differences="forward"), asked(requests)
    )
    np.testing.assert_array_equal(found.gradients, (SLOPES + EPSILON / 2 * BENDS).astype("f4"))
    assert found.gradients.dtype == np.float32
    assert points(requests) == len(SEEDS) + 1
    assert (found.mean_loss, found.curvature) == (CENTRE, None)


@pytest.mark.parametrize("differences", ["central", "forward"])
def test_curvature_takes_both_sides_and_the_centre(differences: str) -> None:
    requests: list[LossRequest] = []
    estimator = prge_estimator(SEEDS, BATCH, EPSILON, True, differences)  # type: ignore[arg-type]
    found = run_estimator(estimator, asked(requests))
    np.testing.assert_array_equal(found.gradients, SLOPES.astype(np.float32))
    assert points(requests) == 2 * len(SEEDS) + 1
    assert found.curvature == BENDS.mean()
