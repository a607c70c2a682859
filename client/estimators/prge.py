"""P-RGE: the projected gradients of q directions on one mini-batch (P-RGE, section 3).

For every query i, g_i = (L(B + ε·z_i) − L(B − ε·z_i)) / 2ε, or with forward differences
(L(B + ε·z_i) − L(B)) / ε (Ghadimi and Lan, 2013): q + 1 losses in place of 2·q, for an error of ε/2
times the curvature along z_i. The estimator only says which rows it wants scored; how they are
grouped into passes is the engine's business.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.directions import BOTH_SIDES, Differences


@dataclass(frozen=True, eq=False)
class Trial:
    """What an estimator wants to know the losses of.

    Attributes:
        seeds: uint64 [q], of the directions; none asks for the one loss L₀ at the centre.
        epsilon: ε.
        batch: int64 [B], which examples.
        signs: s; the points are s·ε of every seed, for one sign after the other.
    """

    seeds: NDArray[np.uint64]
    epsilon: float
    batch: NDArray[np.int64]
    signs: tuple[int, ...] = BOTH_SIDES


@dataclass(frozen=True, eq=False)
class Estimate:
    """What an estimator ends with.

    Attributes:
        gradients: float32 [q], the projected gradients.
        mean_loss: over all points but the centre; at the centre if differences are forward.
        curvature: mean of (L₊ + L₋ − 2·L₀)/ε² over the directions, if it was asked for.
    """

    gradients: NDArray[np.float32]
    mean_loss: float
    curvature: float | None = None


Estimator = Generator[Trial, NDArray[np.float64], Estimate]


def estimate(
    seeds: NDArray[np.uint64],
    batch: NDArray[np.int64],
    epsilon: float,
    curvature: bool = False,
    differences: Differences = "central",
) -> Estimator:
    """One step's estimation as a generator: yields trials, is sent their losses.

    Args:
        seeds: uint64 [q].
        batch: int64 [B].
        epsilon: ε > 0.
        curvature: try both sides and the centre.
        differences: what the projected gradients are made of where curvature is not wanted.

    Yields:
        The trial of all directions; expects losses float64 [2q], + first, then −, or [q], + alone.
        Then that of the centre if it is wanted; expects float64 [1].

    Returns:
        The q projected gradients.
    """
    if differences == "forward" and not curvature:
        plus = yield Trial(seeds, epsilon, batch, signs=(1,))
        (centre,) = yield Trial(seeds[:0], epsilon, batch)
        return Estimate(((plus - centre) / epsilon).astype(np.float32), float(centre))
    losses = yield Trial(seeds, epsilon, batch)
    plus, minus = np.split(losses, 2)
    gradients = ((plus - minus) / (2 * epsilon)).astype(np.float32)
    bend = None
    if curvature:
        centre = yield Trial(seeds[:0], epsilon, batch)
        bend = float(np.mean(plus + minus - 2 * centre)) / epsilon**2
    return Estimate(gradients, float(losses.mean()), bend)


def carried_out(
    estimator: Estimator, losses_of: Callable[[Trial], NDArray[np.float64]]
) -> Estimate:
    """Answer every trial of an estimator.

    Args:
        estimator: not yet begun.
        losses_of: float64 [signs · q] of a trial of q directions, sign by sign; [1] of the centre.

    Returns:
        What it ends with.
    """
    return carried_out_together([estimator], lambda trials: [losses_of(trials[0])])[0]


def carried_out_together(
    estimators: Sequence[Estimator],
    losses_of: Callable[[Sequence[Trial]], Sequence[NDArray[np.float64]]],
) -> list[Estimate]:
    """Answer the trials of several estimators of one kind, those of all at a time.

    Args:
        estimators: not yet begun; they yield as many trials as each other.
        losses_of: of one trial of each, the losses of each.

    Returns:
        What each ends with.
    """
    trials = [next(estimator) for estimator in estimators]
    results: list[Estimate] = []
    while len(results) < len(estimators):
        for index, losses in enumerate(losses_of(trials)):
            try:
                trials[index] = estimators[index].send(losses)
            except StopIteration as finished:
                results.append(finished.value)
    return results
