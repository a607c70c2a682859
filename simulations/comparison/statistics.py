"""Statistics of paired comparisons over clients, in which every client has equal weight."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

CONFIDENCE = 0.95
_RESAMPLES = 9_999
_RESAMPLED_AT_ONCE = 5_000_000
_EXACT_UP_TO = 200
"""Largest number of clients with exact p-values; for more clients, p-values are approximated."""


@dataclass(frozen=True)
class Summary:
    """The distribution of one number per client.

    Attributes:
        mean: mean over clients.
        low: lower end of the mean's bootstrap confidence interval.
        high: upper end of this interval.
        worst: mean over the lowest tenth of the clients, at least one client.
        spread: standard deviation over clients.
    """

    mean: float
    low: float
    high: float
    worst: float
    spread: float


@dataclass(frozen=True)
class Difference:
    """A paired difference between two numbers per client.

    Attributes:
        by_client: differences of the clients, float64 [n].
        mean: mean difference.
        low: lower end of the mean's bootstrap confidence interval.
        high: upper end of this interval.
        p: two-sided p-value of the Wilcoxon signed-rank test.
        effect: matched-pairs rank-biserial correlation, from −1 to 1.
        worst: mean over the tenth of the clients with the lowest differences, at least one client.
    """

    by_client: Numbers
    mean: float
    low: float
    high: float
    p: float
    effect: float
    worst: float

    @property
    def losing(self) -> int:
        """The number of clients with a negative difference."""
        return int((self.by_client < 0).sum())

    @property
    def gaining(self) -> int:
        """The number of clients with a positive difference."""
        return int((self.by_client > 0).sum())


def summarize(values: Numbers) -> Summary:
    """Summarize one number per client, float64 [clients], for at least one client."""
    low, high = interval(values)
    return Summary(float(values.mean()), low, high, worst_tenth(values), float(values.std()))


def paired_difference(one: Numbers, other: Numbers) -> Difference:
    """Compare two numbers per client, both float64 [clients], for at least one client."""
    # rounding, because differences that are equal in decimals must tie
    by_client = np.round(one - other, 12)
    low, high = interval(by_client)
    p, effect = signed_rank(by_client)
    mean = float(by_client.mean())
    worst = worst_tenth(by_client)
    return Difference(by_client, mean, low, high, p, effect, worst)


def interval(values: Numbers) -> tuple[float, float]:
    """Return the bias-corrected and accelerated bootstrap interval of the mean over clients.

    Resampling uses a fixed seed. The interval of a single client is NaN.
    """
    if len(values) < 2:
        return math.nan, math.nan
    if np.ptp(values) == 0:
        return float(values[0]), float(values[0])
    from scipy import stats  # late imports, here and below: scipy loads after the run

    bounds = stats.bootstrap(
        (values,),
        np.mean,
        confidence_level=CONFIDENCE,
        n_resamples=_RESAMPLES,
        batch=max(1, _RESAMPLED_AT_ONCE // len(values)),
        method="BCa",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(bounds.low), float(bounds.high)


def signed_rank(differences: Numbers) -> tuple[float, float]:
    """Return the p-value of Wilcoxon's signed-rank test and its effect size.

    Zeros are ranked and then dropped (Pratt 1959). The p-value is two-sided. Up to 200 clients it
    is exact, even with ties. The effect size is the matched-pairs rank-biserial correlation: the
    positive differences' share of the rank sum minus the negative differences' share (Kerby 2014).
    """
    if not differences.any():
        return 1.0, 0.0
    from scipy import stats

    ranks: Numbers = stats.rankdata(np.abs(differences))[differences != 0]
    signs = np.sign(differences[differences != 0])
    effect = float((signs * ranks).sum() / ranks.sum())
    if len(differences) > _EXACT_UP_TO:
        return float(
            stats.wilcoxon(differences, zero_method="pratt", method="asymptotic").pvalue
        ), effect
    return _exact_p(ranks, float(ranks[signs > 0].sum())), effect


def _exact_p(ranks: Numbers, positive: float) -> float:
    """Return the two-sided p-value of a sum of positive ranks under random signs.

    scipy's exact distribution does not support ties, and its permutation test takes seconds.
    """
    doubled = np.rint(2 * ranks).astype(np.int64)
    chances = np.zeros(doubled.sum() + 1)
    chances[0] = 1.0
    for rank in doubled:
        chances[rank:] += chances[:-rank].copy()
        chances /= 2
    index = round(2 * positive)
    return min(1.0, 2 * float(min(chances[: index + 1].sum(), chances[index:].sum())))


def worst_tenth(values: Numbers) -> float:
    """Return the mean of the lowest tenth of the values; the tenth is rounded up."""
    return float(np.sort(values)[: math.ceil(len(values) / 10)].mean())


def correct_by_holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for multiple testing by Holm's method (Holm 1979)."""
    corrected = [0.0] * len(p_values)
    floor = 0.0
    ascending = sorted(range(len(p_values)), key=lambda index: p_values[index])
    for rank, index in enumerate(ascending):
        floor = max(floor, min(1.0, p_values[index] * (len(p_values) - rank)))
        corrected[index] = floor
    return corrected


def smallest_p(clients: int) -> float:
    """Return the smallest possible p-value for a number of clients, when all clients gain."""
    return float(2.0 ** (1 - clients))
