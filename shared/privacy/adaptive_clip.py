"""The adaptive clip, which follows a quantile of the clients' norms, estimated from noised sums.

Andrew, Thakkar, McMahan, Ramaswamy, Differentially Private Learning with Adaptive Clipping (2021),
Algorithm 1 with the geometric update: C ← C·exp(−η·(b − γ)). Here b is the share of clients with a
norm of at most C, estimated from a noised sum. γ and η have the paper's values.
"""

import math

TARGET = 0.5
"""γ, the target share of clients with a norm within the clip."""
RATE = 0.2
"""η, the step size: the change of the clip's logarithm if b − γ is 1."""
RANGE = (1e-6, 1e6)
"""Smallest and largest possible clip."""


def next_clip(clip: float, within: float, clients: float) -> float:
    """Return the clip of the next round.

    Args:
        clip: clip of this round.
        within: noised sum of indicators: 1 for a norm within the clip, and −1 otherwise.
        clients: number of clients in the sum.
    """
    share = min(1.0, max(0.0, (1 + within / clients) / 2))
    least, most = RANGE
    return min(most, max(least, clip * math.exp(-RATE * (share - TARGET))))
