"""Is a difference between two ways of serving the same clients real? Every client counts once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Numbers = NDArray[np.float64]

CONFIDENCE = 0.95
_RESAMPLES = 9_999
_RESAMPLED_AT_ONCE = 5_000_000
_EXACT_UP_TO = 200
"""Clients; above, the normal approximation is good."""


@dataclass(frozen=True)
class Summary:
    """How one way of serving is spread over the clients.

    Attributes:
        mean: over clients.
        low, high: bootstrap confidence interval of the mean.
        worst: mean over the worst-served tenth of the clients, at least one.
        spread: standard deviation over clients; the smaller, the fairer.
    """

    mean: float
    low: float
    high: float
    worst: float
    spread: float


@dataclass(frozen=True)
class Difference:
    """How much better one way serves the clients than another.

    Attributes:
        own: differences of the clients, float64 [n].
        mean: of them.
        low, high: bootstrap confidence interval of the mean.
        p: two-sided, of the Wilcoxon signed-rank test.
        effect: matched-pairs rank-biserial correlation, from −1 to 1.
        worst: mean over the tenth of the clients that gains least.
    """

    own: Numbers
    mean: float
    low: float
    high: float
    p: float
    effect: float
    worst: float

    @property
    def losing(self) -> int:
        """How many clients are served worse."""
        return int((self.own < 0).sum())

    @property
    def gaining(self) -> int:
        """How many clients are served better."""
        return int((self.own > 0).sum())


def summarized(values: Numbers) -> Summary:
    """The spread of one number per client, float64 [n], n ≥ 1."""
    low, high = interval(values)
    return Summary(float(values.mean()), low, high, worst_tenth(values), float(values.std()))


def compared(one: Numbers, other: Numbers) -> Difference:
    """One number per client held against another of the same client, both float64 [n], n ≥ 1."""
    # Equal differences of rounded shares must tie, whatever binary fractions make of them.
    own = np.round(one - other, 12)
    low, high = interval(own)
    p, effect = signed_rank(own)
    return Difference(own, float(own.mean()), low, high, p, effect, worst_tenth(own))


def interval(values: Numbers) -> tuple[float, float]:
    """Bias-corrected and accelerated bootstrap interval of the mean over clients.

    The resamples are drawn by a fixed seed. Of a single client nothing is known: NaN.
    """
    if len(values) < 2:
        return math.nan, math.nan
    if np.ptp(values) == 0:
        return float(values[0]), float(values[0])
    found = stats.bootstrap(
        (values,),
        np.mean,
        confidence_level=CONFIDENCE,
        n_resamples=_RESAMPLES,
        batch=max(1, _RESAMPLED_AT_ONCE // len(values)),
        method="BCa",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)


def signed_rank(differences: Numbers) -> tuple[float, float]:
    """Wilcoxon's signed-rank test and its effect size, float64 [n] → (p, effect).

    Zeros are ranked and then dropped (Pratt 1959). p is two-sided, and exact, ties included, up
    to 200 clients. The effect is the matched-pairs rank-biserial correlation: the share of the
    rank sum that speaks for, less the share that speaks against (Kerby 2014).
    """
    if not differences.any():
        return 1.0, 0.0
    ranks: Numbers = stats.rankdata(np.abs(differences))[differences != 0]
    signs = np.sign(differences[differences != 0])
    effect = float((signs * ranks).sum() / ranks.sum())
    if len(differences) > _EXACT_UP_TO:
        return float(
            stats.wilcoxon(differences, zero_method="pratt", method="asymptotic").pvalue
        ), effect
    return _exact_p(ranks, float(ranks[signs > 0].sum())), effect


def _exact_p(ranks: Numbers, positive: float) -> float:
    """Two-sided p of a sum of positive ranks: every rank has either sign by an even chance.

    scipy's exact distribution knows no ties, and its permutations take seconds.
    """
    doubled = np.rint(2 * ranks).astype(np.int64)
    chances = np.zeros(doubled.sum() + 1)
    chances[0] = 1.0
    for rank in doubled:
        chances[rank:] += chances[:-rank].copy()
        chances /= 2
    place = round(2 * positive)
    return min(1.0, 2 * float(min(chances[: place + 1].sum(), chances[place:].sum())))


def worst_tenth(values: Numbers) -> float:
    """Mean of the lowest tenth, rounded up to whole clients."""
    return float(np.sort(values)[: math.ceil(len(values) / 10)].mean())


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected so that the chance of any false finding among them is kept (Holm 1979)."""
    corrected, floor = [0.0] * len(p_values), 0.0
    ascending = sorted(range(len(p_values)), key=lambda index: p_values[index])
    for rank, index in enumerate(ascending):
        floor = max(floor, min(1.0, p_values[index] * (len(p_values) - rank)))
        corrected[index] = floor
    return corrected


def smallest_p(clients: int) -> float:
    """The least p that so many clients can give: all of them gain."""
    return float(2.0 ** (1 - clients))
