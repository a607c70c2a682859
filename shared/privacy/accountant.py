"""The accountant: privacy cost of releases with Gaussian noise, in zero-concentrated privacy ρ.

A release is a sum of clients' vectors, each of norm at most 1, with Gaussian noise of standard
deviation z on every number. z is called the noise multiplier. The release is ρ-zCDP with ρ =
1/(2z²). The same holds for discrete Gaussian noise on integers (Canonne, Kamath, Steinke, The
Discrete Gaussian for Differential Privacy, 2020, Theorem 14). The ρ of several releases adds up,
even if later ones depend on earlier ones (Bun and Steinke, 2016, Lemma 2.3), so the accountant only
adds. It assumes no amplification by sampling, which would need unpredictable cohorts and batches.
"""

import math
from functools import cache

ROUNDING = 1 + 1e-9
"""Relative tolerance for rounding: a sum of n equal ρ may differ from n·ρ.

Without the tolerance the last planned round might exceed the budget.
"""
_GOLDEN = (math.sqrt(5) - 1) / 2
_SEARCH_STEPS = 80


def rho_of(noise_multiplier: float, releases: int = 1) -> float:
    """Return the ρ of releases with the same noise multiplier.

    Args:
        noise_multiplier: z, the standard deviation of the noise in units of the sensitivity.
        releases: number of releases.
    """
    return releases / (2 * noise_multiplier**2)


def rho_of_summed_noise(sensitivity: float, sigma: float, summands: int, *, numbers: int) -> float:
    """Return the ρ of a release whose noise is a sum of discrete Gaussians.

    Such a sum is close to a discrete Gaussian with σ·√n, but not equal to it. With τ = 10·Σ
    exp(−2π²σ²k/(k+1)), k from 1 to n − 1, a release of d numbers and sensitivity Δ is ½(Δ/(σ√n) +
    τ√d)²-zCDP (Kairouz, Liu, Steinke, The Distributed Discrete Gaussian Mechanism, 2021, Theorem
    1). With the fine integer units of a vector (`samara.shared.privacy.vector`) τ is below the
    range of float64.

    Args:
        sensitivity: Δ, the largest change by one client, as an L2 norm.
        sigma: σ of each summand, in the same unit; at least ½.
        summands: n, the number of independent summands.
        numbers: d, the length of a vector.
    """
    if sigma < 0.5:
        return math.inf  # no bound is proven
    square = 2 * (math.pi * sigma) ** 2
    correction = 0.0
    if math.exp(-square / 2):  # the largest term
        correction = 10 * math.fsum(math.exp(-square * k / (k + 1)) for k in range(1, summands))
    return (sensitivity / (sigma * math.sqrt(summands)) + correction * math.sqrt(numbers)) ** 2 / 2


def epsilon_of(rho: float, delta: float) -> float:
    """Return an ε for which ρ-zCDP is (ε, δ)-differentially private.

    It is the minimum over α > 1 of αρ + (ln(1/δ) + (α − 1)·ln(1 − 1/α) − ln α)/(α − 1) (Canonne,
    Kamath, Steinke, 2020, Corollary 13). Every α gives a valid ε, so an imprecise search can only
    make the result too large.

    Args:
        rho: ρ, at least 0.
        delta: δ, above 0 and below 1.
    """
    if rho <= 0:
        return 0.0
    low, high = -40.0, 40.0  # range of ln(α − 1), in which the bound has a single minimum
    for _ in range(_SEARCH_STEPS):
        width = _GOLDEN * (high - low)
        if _epsilon_at(high - width, rho, delta) < _epsilon_at(low + width, rho, delta):
            high = low + width
        else:
            low = high - width
    return max(0.0, _epsilon_at((low + high) / 2, rho, delta))


@cache  # settings are checked several times before a run
def rho_within(epsilon: float, delta: float) -> float:
    """Return the largest ρ for which ρ-zCDP implies (ε, δ)-differential privacy, rounded down.

    Args:
        epsilon: ε, above 0.
        delta: δ, above 0 and below 1.
    """
    low, high = 0.0, 1.0
    while epsilon_of(high, delta) <= epsilon:
        low = high
        high = 2 * high
    for _ in range(_SEARCH_STEPS):
        middle = (low + high) / 2
        if epsilon_of(middle, delta) <= epsilon:
            low = middle
        else:
            high = middle
    return low


def noise_multiplier_for(epsilon: float, delta: float, releases: int) -> float:
    """Return the least noise multiplier for which all releases are (ε, δ)-private together.

    Args:
        epsilon: ε, above 0.
        delta: δ, above 0 and below 1.
        releases: number of releases.
    """
    most = rho_within(epsilon, delta)
    multiplier = math.sqrt(releases / (2 * most))
    while rho_of(multiplier, releases) > most:
        multiplier = math.nextafter(multiplier, math.inf)
    return multiplier


def _epsilon_at(log_excess: float, rho: float, delta: float) -> float:
    """Return the bound of `epsilon_of` at α = 1 + exp(log_excess)."""
    excess = math.exp(log_excess)
    alpha = 1 + excess
    tail = -math.log(delta) + excess * log_excess - alpha * math.log1p(excess)
    return alpha * rho + tail / excess
