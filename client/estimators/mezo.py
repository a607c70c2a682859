"""MeZO: n-SPSA with a batch for every direction, and what changes from step to step.

Malladi et al., "Fine-tuning language models with just forward passes" (2023): definition 1 and
algorithm 2 for the estimate, appendix A.2 for the schedules of n. Where all directions share one
batch, n-SPSA is `client.estimators.prge`.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from client.estimators.prge import Estimator, GradientEstimate, LossRequest

QuerySchedule = Literal["constant", "linear"]
LearningRateSchedule = Literal["constant", "linear"]


def mezo_estimator(
    seeds: NDArray[np.uint64],
    batches: NDArray[np.int64],
    epsilon: float,
    curvature: bool = False,
) -> Estimator:
    """Estimate the gradient of one step, every direction on a batch of its own.

    For every j, g_j = (L(θ + ε·z_j; B_j) − L(θ − ε·z_j; B_j)) / 2ε.

    Args:
        seeds: uint64 [n], seeds of the directions.
        batches: int64 [n, B], indices of the examples of every direction.
        epsilon: size ε > 0 of the perturbations.
        curvature: estimate the curvature too, which takes the unperturbed loss on every batch.

    Yields:
        A request for every direction, answered by losses float64 [2], + first, then −. If the
        curvature is requested, each is followed by a request for the unperturbed loss, answered by
        float64 [1].

    Returns:
        The n projected gradients.
    """
    losses = np.empty((len(seeds), 2))
    unperturbed = np.empty(len(seeds))
    for j, batch in enumerate(batches):
        losses[j] = yield LossRequest(seeds[j : j + 1], epsilon, batch)
        if curvature:
            (unperturbed[j],) = yield LossRequest(seeds[:0], epsilon, batch)
    gradients = ((losses[:, 0] - losses[:, 1]) / (2 * epsilon)).astype(np.float32)
    mean_curvature = None
    if curvature:
        mean_curvature = float(np.mean(losses.sum(axis=1) - 2 * unperturbed)) / epsilon**2
    return GradientEstimate(gradients, float(losses.mean()), mean_curvature)


def queries_at(step: int, steps: int, most: int, schedule: QuerySchedule) -> int:
    """Return n, the number of directions in a step.

    The linear schedule of appendix A.2 rises from 1 or more to `most`: ⌈most·(t + 1)/T⌉.

    Args:
        step: index t of the step, from 0.
        steps: number of steps T.
        most: n of the last step.
        schedule: constant or linear.
    """
    return most if schedule == "constant" else -(-most * (step + 1) // steps)


def learning_rate_at(step: int, steps: int, first: float, schedule: LearningRateSchedule) -> float:
    """Return η, the learning rate of a step.

    The linear schedule falls towards zero, the value for step T: η·(1 − t/T).

    Args:
        step: index t of the step, from 0.
        steps: number of steps T.
        first: η of the first step.
        schedule: constant or linear.
    """
    return first if schedule == "constant" else first * ((steps - step) / steps)
