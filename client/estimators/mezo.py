"""MeZO: n-SPSA with a batch for every direction, and what changes from step to step.

Malladi et al., "Fine-tuning language models with just forward passes" (2023): definition 1 and
algorithm 2 for the estimate, appendix A.2 for the schedules of n. Where all directions share one
batch, n-SPSA is `client.estimators.prge`.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from client.estimators.prge import Estimate, Estimator, Trial

QuerySchedule = Literal["constant", "linear"]
LearningRateSchedule = Literal["constant", "linear"]


def estimate(
    seeds: NDArray[np.uint64],
    batches: NDArray[np.int64],
    epsilon: float,
    curvature: bool = False,
) -> Estimator:
    """One step's estimation as a generator: yields a trial per direction, is sent its losses.

    For every j, g_j = (L(θ + ε·z_j; B_j) − L(θ − ε·z_j; B_j)) / 2ε.

    Args:
        seeds: uint64 [n].
        batches: int64 [n, B], the examples of every direction.
        epsilon: ε > 0.
        curvature: try the centre on every batch too.

    Yields:
        Trials of one direction; expects losses float64 [2], + first, then −. Each is followed by
        that of the centre if curvature is wanted; expects float64 [1].

    Returns:
        The n projected gradients.
    """
    losses = np.empty((len(seeds), 2))
    centres = np.empty(len(seeds))
    for j, batch in enumerate(batches):
        losses[j] = yield Trial(seeds[j : j + 1], epsilon, batch)
        if curvature:
            (centres[j],) = yield Trial(seeds[:0], epsilon, batch)
    gradients = ((losses[:, 0] - losses[:, 1]) / (2 * epsilon)).astype(np.float32)
    bend = float(np.mean(losses.sum(axis=1) - 2 * centres)) / epsilon**2 if curvature else None
    return Estimate(gradients, float(losses.mean()), bend)


def queries_at(step: int, steps: int, most: int, schedule: QuerySchedule) -> int:
    """n, the directions of a step.

    The linear schedule of appendix A.2 rises from 1 or more to `most`: ⌈most·(t + 1)/T⌉.

    Args:
        step: t, from 0.
        steps: T.
        most: n of the last step.
        schedule: constant or linear.
    """
    return most if schedule == "constant" else -(-most * (step + 1) // steps)


def learning_rate_at(step: int, steps: int, first: float, schedule: LearningRateSchedule) -> float:
    """η of a step.

    The linear schedule falls to zero, which would be that of step T: η·(1 − t/T).

    Args:
        step: t, from 0.
        steps: T.
        first: η of the first step.
        schedule: constant or linear.
    """
    return first if schedule == "constant" else first * ((steps - step) / steps)
