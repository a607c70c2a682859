"""P-RGE: the projected gradients of q directions from two-sided differences (P-RGE, section 3).

For every query i, g_i = (L(B + ε·z_i) − L(B − ε·z_i)) / 2ε on the same mini-batch. The estimator
only says which rows it wants scored; how they are grouped into passes is the engine's business.
"""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Trial:
    """What an estimator wants to know the losses of.

    Attributes:
        seeds: uint64 [q], of the directions.
        epsilon: ε; the points are +ε of every seed, then −ε of every seed.
        batch: int64 [B], which examples.
    """

    seeds: NDArray[np.uint64]
    epsilon: float
    batch: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Estimate:
    """What an estimator ends with.

    Attributes:
        gradients: float32 [q], the projected gradients.
        mean_loss: over all points.
    """

    gradients: NDArray[np.float32]
    mean_loss: float


def estimate(
    seeds: NDArray[np.uint64], batch: NDArray[np.int64], epsilon: float
) -> Generator[Trial, NDArray[np.float64], Estimate]:
    """One step's estimation as a generator: yields a trial, is sent its losses.

    Args:
        seeds: uint64 [q].
        batch: int64 [B].
        epsilon: ε > 0.

    Yields:
        The trial; expects losses float64 [2q], + first, then −.

    Returns:
        The q projected gradients.
    """
    losses = yield Trial(seeds, epsilon, batch)
    plus, minus = np.split(losses, 2)
    gradients = ((plus - minus) / (2 * epsilon)).astype(np.float32)
    return Estimate(gradients, float(losses.mean()))
