"""P-RGE: the projected gradients of q directions on one mini-batch (P-RGE, section 3).

For every query i, g_i = (L(B + ε·z_i) − L(B − ε·z_i)) / 2ε, or with forward differences
(L(B + ε·z_i) − L(B)) / ε (Ghadimi and Lan, 2013): q + 1 losses in place of 2·q, for an error of ε/2
times the curvature along z_i. An estimator only requests losses; how the rows behind them are
grouped into forward passes is decided by the forward engine.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samara.shared.directions import BOTH_SIDES, Differences


@dataclass(frozen=True, eq=False)
class LossRequest:
    """A request of an estimator for the losses of one batch under some perturbations.

    Attributes:
        seeds: uint64 [q], seeds of the directions; an empty array requests the one unperturbed
            loss L₀.
        epsilon: size ε of the perturbations.
        batch: int64 [B], indices of the examples.
        signs: signs s of the perturbations s·ε·z, in the order of the losses: all seeds with the
            first sign, then all seeds with the next.
        exact: whether L₀ and the exact directional derivatives z·∇L are requested instead of the
            losses under perturbations.
    """

    seeds: NDArray[np.uint64]
    epsilon: float
    batch: NDArray[np.int64]
    signs: tuple[int, ...] = BOTH_SIDES
    exact: bool = False


@dataclass(frozen=True, eq=False)
class GradientEstimate:
    """The projected gradients of one step, with the mean loss and the curvature.

    Attributes:
        gradients: float32 [q], the projected gradients.
        mean_loss: mean loss over all perturbations; with forward differences the unperturbed loss.
        curvature: mean of (L₊ + L₋ − 2·L₀)/ε² over the directions, or None if not requested.
    """

    gradients: NDArray[np.float32]
    mean_loss: float
    curvature: float | None = None


Estimator = Generator[LossRequest, NDArray[np.float64], GradientEstimate]
"""A generator that yields loss requests, is sent their losses, and returns an estimate."""
EstimatorFunction = Callable[[NDArray[np.uint64], NDArray[np.int64], float], Estimator]
"""A registered estimator: seeds uint64 [q], batch int64 [B] and ε of a step to its estimator. All
clients of a step yield as many requests."""


def prge_estimator(
    seeds: NDArray[np.uint64],
    batch: NDArray[np.int64],
    epsilon: float,
    curvature: bool = False,
    differences: Differences = "central",
) -> Estimator:
    """Estimate the gradient of one step on a batch that all directions share.

    Args:
        seeds: uint64 [q], seeds of the directions.
        batch: int64 [B], indices of the examples.
        epsilon: size ε > 0 of the perturbations.
        curvature: estimate the curvature too, which takes both signs and the unperturbed loss.
        differences: kind of the differences where the curvature is not requested.

    Yields:
        A request for all directions, answered by losses float64 [2q], + first, then −, or [q] if
        only + is requested. Then a request for the unperturbed loss where it is needed, answered
        by float64 [1].

    Returns:
        The q projected gradients.
    """
    if differences == "forward" and not curvature:
        plus = yield LossRequest(seeds, epsilon, batch, signs=(1,))
        (unperturbed,) = yield LossRequest(seeds[:0], epsilon, batch)
        gradients = ((plus - unperturbed) / epsilon).astype(np.float32)
        return GradientEstimate(gradients, float(unperturbed))
    losses = yield LossRequest(seeds, epsilon, batch)
    plus, minus = np.split(losses, 2)
    gradients = ((plus - minus) / (2 * epsilon)).astype(np.float32)
    mean_curvature = None
    if curvature:
        unperturbed = yield LossRequest(seeds[:0], epsilon, batch)
        mean_curvature = float(np.mean(plus + minus - 2 * unperturbed)) / epsilon**2
    return GradientEstimate(gradients, float(losses.mean()), mean_curvature)


def run_estimator(
    estimator: Estimator, losses_of: Callable[[LossRequest], NDArray[np.float64]]
) -> GradientEstimate:
    """Run an estimator to its end and return its estimate.

    Args:
        estimator: a generator that has not been started.
        losses_of: function that returns the losses of a request, float64 [signs · q] in the order
            of the request's signs, or [1] for the unperturbed loss.
    """
    return run_estimators([estimator], lambda requests: [losses_of(requests[0])])[0]


def run_estimators(
    estimators: Sequence[Estimator],
    losses_of: Callable[[Sequence[LossRequest]], Sequence[NDArray[np.float64]]],
) -> list[GradientEstimate]:
    """Run several estimators of one kind in step, and return the estimate of each.

    Args:
        estimators: generators that have not been started and yield equally many requests.
        losses_of: function that is given one request of each estimator and returns the losses of
            each.
    """
    requests = [next(estimator) for estimator in estimators]
    results: list[GradientEstimate] = []
    while len(results) < len(estimators):
        for index, losses in enumerate(losses_of(requests)):
            try:
                requests[index] = estimators[index].send(losses)
            except StopIteration as finished:
                results.append(finished.value)
    return results
