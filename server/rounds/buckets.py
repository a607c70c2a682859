"""The combination of a round's sums: of several buckets a trimmed mean, which no single one moves.

It is made of released sums, which have their noise, so that it costs no privacy whatever it does.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samara.server.rounds.aggregation import trimmed_mean
from samara.server.rounds.releases import ReleasedSum
from samara.shared.privacy.vector import VectorSum, read_sum
from samara.shared.secure_aggregation.buckets import LEAST_TRIMMED

NOISE_OF_A_MEDIAN = math.sqrt(math.pi / 2)
"""The noise of a median of normal numbers in units of that of their mean, at most; a trimmed mean
has less."""


class CombinedSums(NamedTuple):
    """The sums of a round as one.

    Attributes:
        total: the sum; with a trimmed mean, what it would be if all buckets were like it.
        clients: number of clients in it.
        noise_multiplier: standard deviation of its noise in units of the largest norm of a vector.
    """

    total: VectorSum
    clients: float
    noise_multiplier: float


def combine_sums(sums: Sequence[ReleasedSum], clip: float, has_indicator: bool) -> CombinedSums:
    """Return the sums of a round as one.

    Of at least `LEAST_TRIMMED` it is the trimmed mean of what a client of each has on average, for
    every number by itself (Yin et al., 2018), with as many buckets left out as `trimmed_mean` takes
    for hostile; of fewer it is their sum.

    Args:
        sums: noised sums, at least one.
        clip: largest norm of a client's projected gradients.
        has_indicator: whether the vectors say if their norm is within the clip.
    """
    clients = math.fsum(one.clients for one in sums)
    multiplier = math.hypot(*(one.noise_multiplier for one in sums))
    totals = np.array([one.total for one in sums], np.float64)
    if len(sums) < LEAST_TRIMMED:
        return CombinedSums(read_sum(totals.sum(0), clip, has_indicator), clients, multiplier)
    means = totals / np.array([[one.clients] for one in sums])
    noise = math.hypot(*(one.noise_multiplier / one.clients for one in sums)) / len(sums)
    return CombinedSums(
        read_sum(trimmed_mean(means) * clients, clip, has_indicator),
        clients,
        NOISE_OF_A_MEDIAN * noise * clients,
    )


def clip_sum(total: NDArray[np.int64], longest: float) -> NDArray[np.int64]:
    """Return a noised sum, int64 [n], scaled down to a norm if it is longer.

    Args:
        total: the sum.
        longest: the norm, such as that which noise and honest vectors can have at most.
    """
    norm = float(np.linalg.norm(total.astype(np.float64)))
    if norm <= longest:
        return total
    scaled: NDArray[np.int64] = np.trunc(total * (longest / norm)).astype(np.int64)
    return scaled
