"""Exact directional derivatives, by a backward pass or by forward-mode differentiation.

For every query i, g_i = z_i·∇L(B), the limit of central differences for ε → 0 (MeZO, section 2.1).
The backward mode takes one forward and one backward pass per step, for any number of queries. The
forward mode takes one pass per query.
"""

import numpy as np
from numpy.typing import NDArray

from samara.client.estimators.prge import Estimator, GradientEstimate, LossRequest, prge_estimator
from samara.shared.protocol.directions import DIRECTION_BITS


def exact_estimator(
    seeds: NDArray[np.uint64], batch: NDArray[np.int64], epsilon: float, curvature: bool = False
) -> Estimator:
    """Compute the exact projected gradients of one step on a batch that all directions share.

    Args:
        seeds: uint64 [q], seeds of the directions.
        batch: int64 [B], indices of the examples.
        epsilon: size ε > 0 of the perturbations for the curvature.
        curvature: whether to estimate the curvature too, from losses as in `prge_estimator`.

    Yields:
        A request for the exact derivatives; its answer is float64 [1 + q], L₀ and z·∇L of every
        direction. If the curvature is requested, the requests of `prge_estimator` follow.

    Returns:
        The q projected gradients, with L₀ as the mean loss.
    """
    unperturbed, *derivatives = yield LossRequest(seeds, epsilon, batch, exact=True)
    gradients = np.array(derivatives).astype(np.float32)
    measured = None
    if curvature:  # L₀ is requested again, because three losses of a difference must round alike
        measured = (yield from prge_estimator(seeds, batch, epsilon, True)).curvature
    return GradientEstimate(gradients, float(unperturbed), measured)


def mezo_exact_estimator(
    seeds: NDArray[np.uint64],
    batches: NDArray[np.int64],
    epsilon: float,
    curvature: bool = False,
) -> Estimator:
    """Compute the exact projected gradients of one step, with a separate batch for every direction.

    Args:
        seeds: uint64 [n], seeds of the directions.
        batches: int64 [n, B], indices of the examples of every direction.
        epsilon: size ε of the perturbations for the curvature.
        curvature: whether to estimate the curvature too.

    Yields:
        The requests of `exact_estimator` for every direction.

    Returns:
        The n projected gradients, with the mean of all L₀ as the mean loss.
    """
    found = []
    for j, batch in enumerate(batches):
        estimate = yield from exact_estimator(seeds[j : j + 1], batch, epsilon, curvature)
        found.append(estimate)
    curvatures = [one.curvature for one in found if one.curvature is not None]
    return GradientEstimate(
        np.concatenate([one.gradients for one in found]),
        float(np.mean([one.mean_loss for one in found])),
        float(np.mean(curvatures)) if curvatures else None,
    )


def directional_derivatives(
    gradient: NDArray[np.float64], z: NDArray[np.int16]
) -> NDArray[np.float64]:
    """Return z·∇L of every direction, float64 [q].

    Args:
        gradient: ∇L, float64 [d].
        z: int16 [q, d], directions with unit 2⁻¹¹.
    """
    products = [float(gradient @ direction.astype(np.float64)) for direction in z]
    return np.array(products) * 2.0**-DIRECTION_BITS
