"""Exact directional derivatives, of clients that can run a backward pass.

For every query i, g_i = z_i·∇L(B), the limit of central differences for ε → 0 (MeZO, section 2.1).
A step takes one forward and one backward pass for any number of queries; the report has the same
form.
"""

import numpy as np
from numpy.typing import NDArray

from client.estimators.prge import Estimator, GradientEstimate, LossRequest, prge_estimator
from shared.directions import DIRECTION_BITS


def exact_estimator(
    seeds: NDArray[np.uint64], batch: NDArray[np.int64], epsilon: float, curvature: bool = False
) -> Estimator:
    """Compute the exact projected gradients of one step on a batch that all directions share.

    Args:
        seeds: uint64 [q], seeds of the directions.
        batch: int64 [B], indices of the examples.
        epsilon: size ε > 0 of the perturbations that the curvature is measured with.
        curvature: estimate the curvature too, from losses as `prge_estimator` does.

    Yields:
        A request for the exact derivatives, answered by float64 [1 + q], L₀ and z·∇L of every
        direction. If the curvature is requested, the requests of `prge_estimator` follow.

    Returns:
        The q projected gradients, with L₀ as the mean loss.
    """
    unperturbed, *derivatives = yield LossRequest(seeds, epsilon, batch, exact=True)
    gradients = np.array(derivatives).astype(np.float32)
    measured = None
    if curvature:  # L₀ again: a second difference needs three losses with the same rounding
        measured = (yield from prge_estimator(seeds, batch, epsilon, True)).curvature
    return GradientEstimate(gradients, float(unperturbed), measured)


def directional_derivatives(
    gradient: NDArray[np.float64], z: NDArray[np.int16]
) -> NDArray[np.float64]:
    """Return z·∇L of every direction, float64 [q], each product and sum in float64.

    Args:
        gradient: ∇L, float64 [d].
        z: int16 [q, d], directions with unit 2⁻¹¹.
    """
    products = [float(gradient @ direction.astype(np.float64)) for direction in z]
    return np.array(products) * 2.0**-DIRECTION_BITS
