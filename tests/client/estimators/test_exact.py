"""The exact estimator: its requests, and its estimates from the answers."""

import numpy as np
import pytest
from numpy.typing import NDArray

from samara.client.estimators.exact import directional_derivatives, exact_estimator
from samara.client.estimators.prge import LossRequest, run_estimator

SEEDS, BATCH, EPSILON = np.array([5, 7], np.uint64), np.array([3, 1]), 0.25
SLOPES, BENDS, CENTRE = np.array([1.5, -2.0]), np.array([4.0, -1.0]), 3.0


@pytest.mark.parametrize("curvature", [False, True])
def test_derivatives_are_reported_and_curvature_is_measured_by_losses(curvature: bool) -> None:
    requests: list[LossRequest] = []

    def losses_of(request: LossRequest) -> NDArray[np.float64]:
        requests.append(request)
        if request.exact:
            return np.append(CENTRE, SLOPES)
        if not len(request.seeds):
            return np.array([CENTRE])
        steps = request.epsilon * np.array(request.signs)[:, None]
        return (CENTRE + steps * SLOPES + 0.5 * steps**2 * BENDS).ravel()

    found = run_estimator(exact_estimator(SEEDS, BATCH, EPSILON, curvature), losses_of)
    assert found.gradients.dtype == np.float32
    np.testing.assert_array_equal(found.gradients, SLOPES)
    assert found.mean_loss == CENTRE
    assert found.curvature == (pytest.approx(BENDS.mean()) if curvature else None)
    assert [request.exact for request in requests] == [True] + [False] * 2 * curvature


def test_products_are_summed_in_float64() -> None:
    gradient = np.array([1.0, 2.0**-40, -1.0])
    z = np.array([[2048, 2048, 2048], [2048, 0, 0]], np.int16)
    np.testing.assert_array_equal(directional_derivatives(gradient, z), [2.0**-40, 1.0])
