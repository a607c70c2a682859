"""Rules that bound what one client's report does to a round. Pure numpy, and blind to client order.

A client's contribution to a round is u = Σ y·z(seed) along the directions that it tried, y being
its clipped projected gradients. A rule acts on the y's alone, by a factor per report or per
projected gradient, so an update stays a list of seeds and coefficients and replay does not know of
rules.

Each rule expects that `hostile_count` of the clients are hostile, whoever they are.
"""

import math

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

HOSTILE_SHARE = 0.3
"""The share of the clients that rules expect to be hostile."""
_CENTERINGS = 5


def hostile_count(clients: int) -> int:
    """Return how many of some clients rules expect to be hostile: fewer than half, 0 of two."""
    return max(0, min(max(1, round(HOSTILE_SHARE * clients)), (clients - 1) // 2))


def usual_limit(values: Numbers) -> float:
    """Return the limit that clients' values are cut to: the median of the n − f smallest.

    f is `hostile_count`. Whoever wants to count more reports large values, and f of them move the
    median of all n to a large one of the others. Without the f largest, which comparative gradient
    elimination leaves out too (Gupta, Liu and Vaidya, Byzantine Fault-Tolerant Distributed Machine
    Learning with Norm-Based Comparative Gradient Elimination, 2021), it is the others' own median.
    The limit is no lower than the (f + 1)-th smallest value, so that f small ones cannot move it
    below all others. It is at most the median, and of two values the lower.

    Args:
        values: float64 [n].
    """
    clients, hostile = len(values), hostile_count(len(values))
    rank = max(hostile + 1, math.ceil((clients - hostile) / 2))
    return float(np.sort(values)[rank - 1])


def trimmed_mean(values: Numbers) -> Numbers:
    """Return the mean over clients without the `hostile_count` lowest and highest values.

    Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates (2018),
    definition 2.

    Args:
        values: float64 [n, ...]; every element of the rest is trimmed for itself.

    Returns:
        float64 [...].
    """
    cut = hostile_count(len(values))
    mean: Numbers = np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)
    return mean


def coordinate_median(values: Numbers) -> Numbers:
    """Return the median over clients of every element; Yin et al. (2018), definition 1.

    Args:
        values: float64 [n, ...].
    """
    median: Numbers = np.median(values, axis=0)
    return median


def norm_factors(norms: Numbers) -> Numbers:
    """Return the factors, at most 1, that scale reports down to the `usual_limit` of their norms.

    Clipping of norms against poisoned updates: Sun et al., Can You Really Backdoor Federated
    Learning? (2019), section 5; the limit comes from the cohort here.

    Args:
        norms: norms of the contributions, float64 [n].
    """
    limit = usual_limit(norms)
    factors: Numbers = limit / np.maximum(norms, max(limit, np.finfo(float).tiny))
    return np.where(norms <= limit, 1.0, factors)


def krum_selection(products: Numbers) -> NDArray[np.bool_]:
    """Return which contributions multi-Krum averages: those close to most others.

    The score of a contribution is the sum of its squared distances to its n − f − 2 nearest, f
    being `hostile_count`; the n − f with the lowest scores are selected (Blanchard et al., Machine
    Learning with Adversaries: Byzantine Tolerant Gradient Descent, 2017, section 4).

    Args:
        products: inner products of the contributions, float64 [n, n].

    Returns:
        bool [n].
    """
    clients = len(products)
    hostile = hostile_count(clients)
    nearest = max(1, clients - hostile - 2)
    scores = np.sort(_squared_distances(products), axis=1)[:, 1 : 1 + nearest].sum(axis=1)
    selected: NDArray[np.bool_] = scores <= np.sort(scores)[clients - hostile - 1]
    return selected


def centering_weights(products: Numbers, weights: Numbers) -> Numbers:
    """Return the weights that the contributions have in a mean by centered clipping.

    From v = 0, v ← v + Σ w·(u − v)·min(1, τ/|u − v|) is repeated, with the `usual_limit` of the
    distances from v as τ (Karimireddy et al., Learning from History for Byzantine Robust
    Optimization, 2021, algorithm 2, without the momentum, which would put earlier rounds' seeds
    into a round). v stays a weighted sum of the contributions.

    Args:
        products: inner products of the contributions, float64 [n, n].
        weights: shares of the clients, float64 [n], with sum 1.

    Returns:
        Weights of the contributions, float64 [n].
    """
    center = np.zeros(len(weights))
    for _ in range(_CENTERINGS):
        squares = np.diag(products) - 2 * products @ center + center @ products @ center
        moves = weights * norm_factors(np.sqrt(np.maximum(squares, 0.0)))
        center = center * (1 - moves.sum()) + moves
    return center


def _squared_distances(products: Numbers) -> Numbers:
    squares = np.diag(products)
    distances: Numbers = np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0.0)
    np.fill_diagonal(distances, -1.0)  # sorts first, before equal reports at distance 0
    return distances
