"""The statistics that decide whether a difference is significant."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from samara.simulations.comparison.statistics import (
    correct_by_holm,
    interval,
    paired_difference,
    signed_rank,
    smallest_p,
    summarize,
    worst_tenth,
)

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=20)


def test_holm_of_a_worked_example() -> None:
    """0.01·4 = 0.04, 0.02·3 = 0.06, 0.03·2 = 0.06, and 0.04 is raised to 0.06."""
    assert correct_by_holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])


@given(P_VALUES)
def test_holm_lies_between_no_correction_and_bonferroni(p_values: list[float]) -> None:
    corrected = correct_by_holm(p_values)
    for raw, own in zip(p_values, corrected, strict=True):
        assert raw <= own <= min(1, raw * len(p_values))
    order = np.argsort(p_values, kind="stable")
    assert all(np.diff(np.array(corrected)[order]) >= 0)


def test_the_test_of_few_clients_is_exact() -> None:
    assert signed_rank(np.arange(1.0, 9.0)) == (2 / 2**8, 1.0)
    assert smallest_p(8) == 2 / 2**8


def test_without_ties_the_test_is_scipys_exact_one() -> None:
    own = np.array([0.5, -1.0, 2.0, 3.0, -4.5, 5.0, 6.0, 7.5])
    assert signed_rank(own)[0] == pytest.approx(stats.wilcoxon(own, method="exact").pvalue)


def test_with_ties_and_zeros_it_is_that_of_all_signs() -> None:
    own = np.array([0.0, 1.0, 1.0, -1.0, 2.0, 2.0, 2.0, 3.0, 0.0, -3.0])
    all_signs = stats.PermutationMethod(n_resamples=2**10)
    expected = stats.wilcoxon(own, zero_method="pratt", method=all_signs).pvalue
    assert signed_rank(own)[0] == pytest.approx(expected)


def test_where_the_exact_test_ends_the_approximation_agrees_with_it() -> None:
    own = np.round(np.random.default_rng(3).normal(0.1, 1, 201), 1)
    approximate = [
        stats.wilcoxon(one, zero_method="pratt", method="asymptotic").pvalue
        for one in (own[:200], own)
    ]
    assert signed_rank(own[:200])[0] == pytest.approx(approximate[0], rel=0.05)
    assert signed_rank(own)[0] == approximate[1]


def test_the_effect_is_the_difference_of_rank_sums() -> None:
    """|d| = 1, 2, 3, 4 have the ranks 1 to 4. Ranks 1 + 3 + 4 are in favour, 2 against: 6 / 10."""
    assert signed_rank(np.array([1.0, -2.0, 3.0, 4.0]))[1] == pytest.approx(0.6)
    # A zero takes rank 1 and is dropped: ranks 2 and 3 are left, one against the other.
    assert signed_rank(np.array([0.0, -1.0, 2.0]))[1] == pytest.approx(1 / 5)


def test_no_difference_is_no_evidence() -> None:
    own = paired_difference(np.full(5, 0.7), np.full(5, 0.7))
    assert (own.mean, own.low, own.high, own.p, own.effect) == (0, 0, 0, 1, 0)
    assert (own.gaining, own.losing) == (0, 0)


def test_equal_steps_of_accuracy_tie() -> None:
    """0.3 − 0.2 and 0.2 − 0.1 differ as binary fractions, but are the same difference."""
    own = paired_difference(np.array([0.3, 0.2]), np.array([0.2, 0.1])).by_client
    assert own[0] == own[1]


@given(st.lists(st.integers(-100, 100), min_size=1, max_size=40))
def test_swapping_the_sides_swaps_the_sign(hundredths: list[int]) -> None:
    values = np.array(hundredths) / 100
    zeros = np.zeros_like(values)
    there, back = paired_difference(values, zeros), paired_difference(zeros, values)
    assert there.p == pytest.approx(back.p)
    assert (there.mean, there.effect) == pytest.approx((-back.mean, -back.effect))
    assert (there.gaining, there.losing) == (back.losing, back.gaining)


def test_many_clients_with_a_clear_gain() -> None:
    rng = np.random.default_rng(0)
    before = rng.uniform(0.5, 0.7, 60)
    own = paired_difference(before + rng.normal(0.05, 0.05, 60), before)
    assert own.low < 0.05 < own.high
    assert own.p < 1e-6
    assert 0.5 < own.effect < 1


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    """The bound for 100 samples is 95 % minus three standard errors, 88.5 %. Samples are skewed."""
    rng = np.random.default_rng(1)
    covered = [
        low < 1 < high for low, high in (interval(rng.exponential(1, 40)) for _ in range(100))
    ]
    assert np.mean(covered) > 0.885


def test_a_single_client_has_no_interval() -> None:
    assert all(math.isnan(bound) for bound in interval(np.array([0.5])))


def test_the_worst_tenth_is_rounded_up_to_whole_clients() -> None:
    values = np.arange(25.0)[::-1]
    assert worst_tenth(values) == 1.0  # of 0, 1, 2
    assert summarize(np.array([0.25, 0.75])).worst == 0.25
    assert summarize(np.array([0.25, 0.75])).spread == 0.25
