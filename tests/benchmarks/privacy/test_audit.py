"""The audit by canaries: its bound holds for the noise of a run, and detects too little noise."""

import math

import numpy as np
import pytest

from benchmarks.privacy.audit import NOISES, audit, chance_of_guesses, guess, lower_bound

DELTA = 1e-5


def test_without_delta_the_chance_is_that_of_a_binomial() -> None:
    """Three right guesses of three have the probability (e^ε/(1 + e^ε))³."""
    assert chance_of_guesses(10, 3, 3, math.log(3), 0.0) == pytest.approx(0.75**3)
    assert chance_of_guesses(10, 3, 0, 1.0, 0.0) == 1.0


def test_delta_adds_to_the_chance_and_lowers_the_bound() -> None:
    without, with_delta = (chance_of_guesses(100, 40, 35, 1.0, delta) for delta in (0.0, 1e-3))
    # one right guess fewer has this probability, the largest mean over the values below 35
    chance = 1 / (1 + math.exp(-1.0))
    values = [math.comb(40, k) * chance**k * (1 - chance) ** (40 - k) for k in range(35)]
    most = max(sum(values[-i:]) / i for i in range(1, 36))
    assert with_delta - without == pytest.approx(2 * 100 * 1e-3 * most)
    assert lower_bound(100, 40, 35, 1e-3) < lower_bound(100, 40, 35, 0.0)


def test_guesses_that_are_all_right_bound_epsilon_by_their_number() -> None:
    """If all r guesses are right, the bound is the ε with qʳ = 5 %, where q = e^ε/(1 + e^ε)."""
    share = 0.05 ** (1 / 100)
    bound = lower_bound(1000, 100, 100, 0.0)
    assert bound == pytest.approx(math.log(share / (1 - share)), abs=1e-6)
    assert lower_bound(1000, 100, 50, DELTA) == 0.0


def test_bounds_hold_for_randomized_response() -> None:
    """A guess is right with probability e^ε/(1 + e^ε).

    At most about 5 % of the bounds are above ε.
    """
    epsilon, rng = 1.0, np.random.default_rng(0)
    right = rng.binomial(200, 1 / (1 + math.exp(-epsilon)), size=400)
    bounds = {count: lower_bound(200, 200, count, 0.0) for count in set(right.tolist())}
    above = np.mean([bounds[count] > epsilon for count in right.tolist()])
    assert 0 < above <= 0.08
    assert np.median([bounds[count] for count in right.tolist()]) > 0.6


def test_the_highest_and_lowest_scores_are_guessed() -> None:
    assert guess(np.array([0.0, 3.0, 1.0, -2.0]), share=0.5).tolist() == [0, 1, 0, -1]


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_bound_is_below_the_reported_epsilon(epsilon: float) -> None:
    """The noise is random: both bounds are above ε by chance in one test of 400."""
    measured = [audit(epsilon, seed, NOISES["as reported"], 512, 2) for seed in range(2)]
    assert all(row["reported"] == pytest.approx(epsilon) for row in measured)
    assert min(row["lower_bound"] for row in measured) <= epsilon


@pytest.mark.parametrize("noise", ["a quarter", "none"])
def test_noise_that_is_too_small_is_found(noise: str) -> None:
    """The accountant reports ε = 0.5.

    With a quarter of the noise, about one audit in eight fails.
    """
    measured = [audit(0.5, seed, NOISES[noise], 2048, 2) for seed in range(6)]
    assert all(row["reported"] == pytest.approx(0.5) for row in measured)
    assert max(row["lower_bound"] for row in measured) > 0.5
