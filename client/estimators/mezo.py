"""MeZO: n-SPSA with a separate batch for every direction, and the schedules of n and η.

Malladi et al., "Fine-tuning language models with just forward passes" (2023): definition 1 and
algorithm 2 for the estimate, appendix A.2 for the schedules of n. `samara.client.estimators.prge`
is n-SPSA with one batch for all directions.
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from samara.client.estimators.prge import Estimator, GradientEstimate, LossRequest

QuerySchedule = Literal["constant", "linear"]
LearningRateSchedule = Literal["constant", "linear", "cosine"]


def mezo_estimator(
    seeds: NDArray[np.uint64],
    batches: NDArray[np.int64],
    epsilon: float,
    curvature: bool = False,
) -> Estimator:
    """Estimate the projected gradients of one step, with a separate batch for every direction.

    For every j, g_j = (L(θ + ε·z_j; B_j) − L(θ − ε·z_j; B_j)) / 2ε.

    Args:
        seeds: uint64 [n], seeds of the directions.
        batches: int64 [n, B], indices of the examples of every direction.
        epsilon: size ε > 0 of the perturbations.
        curvature: whether to estimate the curvature too, from the unperturbed loss on every batch.

    Yields:
        A request for every direction; its answer is the losses float64 [2], + first, then −. If the
        curvature is requested, a request for the unperturbed loss follows each request; its answer
        is float64 [1].

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


def one_point_estimator(
    seeds: NDArray[np.uint64],
    batches: NDArray[np.int64],
    epsilon: float,
    previous: float | None,
) -> Estimator:
    """Estimate the projected gradients of one step from one loss per direction.

    For every j, g_j = (L(θ + ε·z_j; B_j) − l) / ε, where l is the mean of these losses in the
    previous step, at that step's θ. Sources: MeZO, definition 8 and appendix B.5, with one
    direction; Zhang et al., "A new one-point residual-feedback oracle for black-box learning and
    control" (2022).

    Args:
        seeds: uint64 [n], seeds of the directions.
        batches: int64 [n, B], indices of the examples of every direction.
        epsilon: size ε > 0 of the perturbations.
        previous: l, the mean loss of the previous step; None in the first step, which uses its own
            mean loss.

    Yields:
        A request for every direction; its answer is one loss, float64 [1].

    Returns:
        The n projected gradients, with the mean loss, which is the next step's l.
    """
    losses = np.empty(len(seeds))
    for j, batch in enumerate(batches):
        (losses[j],) = yield LossRequest(seeds[j : j + 1], epsilon, batch, signs=(1,))
    mean = float(losses.mean())
    reference = mean if previous is None else previous
    return GradientEstimate(((losses - reference) / epsilon).astype(np.float32), mean)


def queries_at(step: int, steps: int, most: int, schedule: QuerySchedule) -> int:
    """Return n, the number of directions in a step.

    The linear schedule of appendix A.2 is ⌈most·(t + 1)/T⌉, which rises to `most`.

    Args:
        step: index t of the step, from 0.
        steps: number of steps T.
        most: n of the last step.
        schedule: constant or linear.
    """
    return most if schedule == "constant" else -(-most * (step + 1) // steps)


def learning_rate_at(
    step: int, steps: int, highest: float, schedule: LearningRateSchedule, warm_up: int = 0
) -> float:
    """Return η, the learning rate of a step.

    The learning rate rises linearly to the highest value in W warm-up steps. Then it stays
    constant, or falls to zero at step T, linearly or along half a period of a cosine.

    Args:
        step: index t of the step, from 0.
        steps: number of steps T.
        highest: highest η.
        schedule: constant, linear or cosine.
        warm_up: number of warm-up steps W < T.
    """
    if step < warm_up:
        return highest * ((step + 1) / warm_up)
    rest = (steps - step) / (steps - warm_up)
    match schedule:
        case "constant":
            return highest
        case "linear":
            return highest * rest
        case "cosine":
            return highest * (1 - math.cos(math.pi * rest)) / 2
