"""MeZO: n-SPSA with a batch for every direction, and what changes from step to step.

Malladi et al., "Fine-tuning language models with just forward passes" (2023): definition 1 and
algorithm 2 for the estimate, appendix A.2 for the schedules of n. Where all directions share one
batch, n-SPSA is `client.estimators.prge`.
"""

from collections.abc import Callable, Generator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from client.estimators.prge import Estimate, Trial

QuerySchedule = Literal["constant", "linear"]
LearningRateSchedule = Literal["constant", "linear"]
Estimator = Generator[Trial, NDArray[np.float64], Estimate]


def estimate(seeds: NDArray[np.uint64], batches: NDArray[np.int64], epsilon: float) -> Estimator:
    """One step's estimation as a generator: yields a trial per direction, is sent its losses.

    For every j, g_j = (L(θ + ε·z_j; B_j) − L(θ − ε·z_j; B_j)) / 2ε.

    Args:
        seeds: uint64 [n].
        batches: int64 [n, B], the examples of every direction.
        epsilon: ε > 0.

    Yields:
        Trials of one direction; expects losses float64 [2], + first, then −.

    Returns:
        The n projected gradients.
    """
    losses = np.empty((len(seeds), 2))
    for j, batch in enumerate(batches):
        losses[j] = yield Trial(seeds[j : j + 1], epsilon, batch)
    gradients = ((losses[:, 0] - losses[:, 1]) / (2 * epsilon)).astype(np.float32)
    return Estimate(gradients, float(losses.mean()))


def carried_out(
    estimator: Estimator, losses_of: Callable[[Trial], NDArray[np.float64]]
) -> Estimate:
    """Answer every trial of an estimator.

    Args:
        estimator: not yet begun.
        losses_of: float64 [2q] of a trial of q directions, + first, then −.

    Returns:
        What it ends with.
    """
    trial = next(estimator)
    while True:
        try:
            trial = estimator.send(losses_of(trial))
        except StopIteration as finished:
            result: Estimate = finished.value
            return result


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
