"""P-RGE: the projected gradients of q directions on one mini-batch (P-RGE, section 3).

For every query i, g_i = (L(B + ε·z_i) − L(B − ε·z_i)) / 2ε. With forward differences, g_i =
(L(B + ε·z_i) − L(B)) / ε (Ghadimi and Lan, 2013). Forward differences need q + 1 losses instead
of 2·q, and have an error of ε/2 times the curvature along z_i. An estimator only requests losses.
The forward engine decides how to group their rows into forward passes.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from samara.shared.protocol.directions import BOTH_SIDES, Differences


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
        exact: whether to request L₀ and the exact directional derivatives z·∇L instead of losses
            under perturbations.
        unperturbed: whether to request L₀ too, after the losses under perturbations.
    """

    seeds: NDArray[np.uint64]
    epsilon: float
    batch: NDArray[np.int64]
    signs: tuple[int, ...] = BOTH_SIDES
    exact: bool = False
    unperturbed: bool = False


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
"""A generator that yields loss requests, receives their losses, and returns an estimate."""
EstimatorFunction = Callable[[NDArray[np.uint64], NDArray[np.int64], float], Estimator]
"""A function that takes a step's seeds, uint64 [q], its batch, int64 [B], and ε, and returns the
step's estimator. The estimators of all clients yield equally many requests in a step."""


def prge_estimator(
    seeds: NDArray[np.uint64],
    batch: NDArray[np.int64],
    epsilon: float,
    curvature: bool = False,
    differences: Differences = "central",
) -> Estimator:
    """Estimate the projected gradients of one step on a batch that all directions share.

    Args:
        seeds: uint64 [q], seeds of the directions.
        batch: int64 [B], indices of the examples.
        epsilon: size ε > 0 of the perturbations.
        curvature: whether to estimate the curvature too, from both signs and the unperturbed loss.
        differences: central or forward; the curvature always takes central differences.

    Yields:
        A request for all directions; its answer is the losses float64 [2q], + first, then −, or [q]
        if only + is requested. The unperturbed loss follows these losses if needed.

    Returns:
        The q projected gradients.
    """
    if differences == "forward" and not curvature:
        losses = yield LossRequest(seeds, epsilon, batch, signs=(1,), unperturbed=True)
        plus, unperturbed = losses[:-1], losses[-1]
        gradients = ((plus - unperturbed) / epsilon).astype(np.float32)
        return GradientEstimate(gradients, float(unperturbed))
    answer = yield LossRequest(seeds, epsilon, batch, unperturbed=curvature)
    losses = answer[: 2 * len(seeds)]
    plus, minus = losses[: len(seeds)], losses[len(seeds) :]
    gradients = ((plus - minus) / (2 * epsilon)).astype(np.float32)
    mean_curvature = None
    if curvature:
        mean_curvature = float(np.mean(plus + minus - 2 * answer[-1])) / epsilon**2
    return GradientEstimate(gradients, float(losses.mean()), mean_curvature)


def run_estimator(
    estimator: Estimator, losses_of: Callable[[LossRequest], NDArray[np.float64]]
) -> GradientEstimate:
    """Run an estimator to its end and return its estimate.

    Args:
        estimator: a generator that has not been started.
        losses_of: function that returns a request's losses, float64 [signs · q] in the order of the
            request's signs. For a request that also includes the unperturbed loss, the function is
            called a second time without seeds, and returns float64 [1].
    """

    def answers(requests: Sequence[LossRequest]) -> list[NDArray[np.float64]]:
        (request,) = requests
        perturbed = replace(request, unperturbed=False)
        losses = losses_of(perturbed)
        if request.unperturbed:
            losses = np.append(losses, losses_of(replace(perturbed, seeds=request.seeds[:0])))
        return [losses]

    return run_estimators([estimator], answers)[0]


def run_estimators(
    estimators: Sequence[Estimator],
    losses_of: Callable[[Sequence[LossRequest]], Sequence[NDArray[np.float64]]],
) -> list[GradientEstimate]:
    """Run several estimators of one kind in lockstep and return their estimates.

    Args:
        estimators: generators that have not been started and yield equally many requests.
        losses_of: function that takes one request per estimator and returns the losses of each
            request, as in `run_estimator`.
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
