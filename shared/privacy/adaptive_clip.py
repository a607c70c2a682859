"""The adaptive clip: it follows a quantile of the clients' norms, as far as noised sums tell it.

Andrew, Thakkar, McMahan, Ramaswamy, Differentially Private Learning with Adaptive Clipping (2021),
Algorithm 1 with the geometric update: C ← C·exp(−η·(b − γ)), where b is the share of clients whose
norm is at most C, from a noised sum. The γ and η are theirs.
"""

import math

TARGET = 0.5
"""γ, the share of clients whose norm is to be within the clip."""
RATE = 0.2
"""η, the logarithm by which the clip moves if the share is off by 1."""
RANGE = (1e-6, 1e6)
"""The least and the largest clip."""


def next_clip(clip: float, within: float, clients: float) -> float:
    """Return the clip of the round after one with a clip.

    Args:
        clip: clip of the round.
        within: noised sum of 1 for each client whose norm is within it, and −1 for each other one.
        clients: number of clients in the sum.
    """
    share = min(1.0, max(0.0, (1 + within / clients) / 2))
    least, most = RANGE
    return min(most, max(least, clip * math.exp(-RATE * (share - TARGET))))
