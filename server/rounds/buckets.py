"""Combines the sums of a round's buckets with a trimmed mean, which limits each bucket's influence.

The sums already contain noise. Their combination therefore costs no further privacy.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from samara.server.rounds.aggregation import trimmed_mean
from samara.server.rounds.releases import ReleasedSum
from samara.shared.privacy.vector import VectorSum, read_sum
from samara.shared.protocol.secure_aggregation.buckets import LEAST_TRIMMED

NOISE_OF_A_MEDIAN = math.sqrt(math.pi / 2)
"""Standard deviation of the median of many normal numbers, relative to that of their mean.

The ratio is an upper bound for a trimmed mean, which has less noise than a median.
"""


class CombinedSums(NamedTuple):
    """The sums of a round, combined into one.

    Attributes:
        total: sum of the buckets' sums, or the trimmed mean of their averages times `clients`.
        clients: number of clients in the sum.
        noise_multiplier: standard deviation of the sum's noise in units of the largest norm of a
            client's vector.
    """

    total: VectorSum
    clients: float
    noise_multiplier: float


def combine_sums(sums: Sequence[ReleasedSum], clip: float, has_indicator: bool) -> CombinedSums:
    """Combine the sums of a round into one.

    Fewer than `LEAST_TRIMMED` sums are added up. Otherwise each sum is divided by its number of
    clients. The result is then the `trimmed_mean` of these averages (Yin et al., 2018), times the
    number of all clients.

    Args:
        sums: noised sums, at least one.
        clip: largest norm of a client's projected gradients.
        has_indicator: whether vectors include the indicator of adaptive clipping.
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
    """Return a noised sum, scaled down to norm `longest` if its norm is larger.

    Args:
        total: the sum, int64 [n].
        longest: largest allowed norm.
    """
    norm = float(np.linalg.norm(total.astype(np.float64)))
    if norm <= longest:
        return total
    scaled: NDArray[np.int64] = np.trunc(total * (longest / norm)).astype(np.int64)
    return scaled
