"""The accountant, compared with published values and another implementation; its own laws."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samara.shared.privacy.accountant import epsilon_of, noise_multiplier_for, rho_of, rho_within


def test_the_published_budget_of_the_census() -> None:
    """2020 Census redistricting data, persons: ρ = 2.56, δ = 10⁻¹⁰, published as ε = 17.14."""
    assert epsilon_of(2.56, 1e-10) == pytest.approx(17.14, rel=0.01)


def test_the_published_budget_of_a_keyboard() -> None:
    """Gboard's Spanish model: ρ = 0.81 (McMahan and Thakurta, 2022), δ = 10⁻¹⁰ (Xu et al., 2023).

    Zhang and Xu (Google Research, 2024) give its ε as 8.9.
    """
    assert epsilon_of(0.81, 1e-10) == pytest.approx(8.9, rel=0.01)


@pytest.mark.parametrize(
    ("multiplier", "releases", "delta", "epsilon"),
    [
        (1, 1, 1e-5, 4.728387387137021),
        (10, 100, 1e-5, 4.728387387137021),
        (1, 40, 1e-5, 48.75452378283261),
        (2, 40, 1e-5, 19.047291602917042),
        (4, 1000, 1e-6, 71.11514990376703),
        (0.5, 3, 1e-5, 21.439654432094112),
        (30, 40, 1e-5, 0.8410554123618328),
    ],
)
def test_googles_accountant_says_the_same(
    multiplier: float, releases: int, delta: float, epsilon: float
) -> None:
    """The expected ε are from `RdpAccountant` of dp-accounting 0.6.0.

    Its orders were 1.01 to 30.99 in steps of 0.01, and 31 to 2,999.
    """
    assert epsilon_of(rho_of(multiplier, releases), delta) == pytest.approx(epsilon, rel=1e-4)


def test_the_exact_curve_of_the_continuous_gaussian_is_below_by_little() -> None:
    """The exact curve is δ(ε) of one Gaussian release (Balle and Wang, 2018, Theorem 8)."""
    from scipy.stats import norm

    for multiplier in (0.5, 1.0, 4.0):
        epsilon = epsilon_of(rho_of(multiplier), 1e-5)
        at = 1 / (2 * multiplier)
        exact = norm.cdf(at - epsilon * multiplier) - math.exp(epsilon) * norm.cdf(
            -at - epsilon * multiplier
        )
        assert 1e-6 < exact <= 1e-5


@given(st.floats(0.01, 50), st.sampled_from([1e-5, 1e-8]), st.integers(1, 10_000))
def test_a_multiplier_for_a_budget_stays_within_it(
    epsilon: float, delta: float, releases: int
) -> None:
    multiplier = noise_multiplier_for(epsilon, delta, releases)
    assert rho_of(multiplier, releases) <= rho_within(epsilon, delta)
    spent = epsilon_of(rho_of(multiplier, releases), delta)
    assert spent == pytest.approx(epsilon, rel=1e-6)
    assert epsilon_of(rho_of(multiplier, releases + 1 + releases // 100), delta) > epsilon


def test_rho_within_a_budget_is_rounded_down() -> None:
    rho = rho_within(2.0, 1e-5)
    assert epsilon_of(rho, 1e-5) <= 2.0 < epsilon_of(rho * 1.0001, 1e-5)


def test_nothing_released_costs_nothing() -> None:
    assert epsilon_of(rho_of(1.0, 0), 1e-5) == 0.0
