"""Samples of the discrete Gaussian: their distribution, and their source of randomness."""

import random
import secrets

import numpy as np
import pytest
from scipy.stats import chisquare

from samara.shared.privacy.discrete_gaussian import sample_noise


def probabilities(sigma: int, reach: int) -> np.ndarray:
    """Probabilities of −reach … reach, float64 [2 · reach + 1]; the tails are negligible."""
    values = np.arange(-reach, reach + 1)
    weights = np.exp(-(values**2) / (2 * sigma**2))
    return weights / weights.sum()


@pytest.mark.parametrize("sigma", [1, 2, 5])
def test_whole_numbers_come_as_often_as_they_should(sigma: int) -> None:
    count, reach = 20_000, 3 * sigma
    samples = sample_noise(count, sigma, random.Random(sigma).randrange).astype(int)
    inside = np.clip(samples, -reach - 1, reach + 1)  # all beyond are counted together
    expected = probabilities(sigma, 20 * sigma)
    middle = expected[17 * sigma : 23 * sigma + 1]
    tail = (1 - middle.sum()) / 2
    seen = np.bincount(inside + reach + 1, minlength=2 * reach + 3)
    assert chisquare(seen, count * np.concatenate([[tail], middle, [tail]])).pvalue > 1e-3


def test_a_wide_one_has_its_standard_deviation() -> None:
    sigma = 3 * 2**24
    samples = sample_noise(4_000, sigma, random.Random(3).randrange).astype(float) / sigma
    assert abs(samples.mean()) < 4 / np.sqrt(4_000)
    assert samples.std() == pytest.approx(1.0, abs=4 / np.sqrt(8_000))


def test_an_injected_source_decides_the_samples() -> None:
    """The same source gives the same samples, so nothing else is random."""
    first, second = (sample_noise(5, 1000, random.Random(7).randrange) for _ in range(2))
    assert first.tolist() == second.tolist()
    assert len(set(first.tolist())) > 1


def test_a_sample_from_known_randomness() -> None:
    """The script follows the sampler by hand for σ = 3.

    Remainder 2 is kept, the multiple is 0, the sign is minus, and −2 is kept.
    """
    script = iter([(4, 2), (4, 3), (1, 0), (2, 1), (2, 1), (288, 5)])

    def below(bound: int) -> int:
        expected, answer = next(script)
        assert bound == expected
        return answer

    assert sample_noise(1, 3, below).tolist() == [-2]
    assert next(script, None) is None


def test_the_operating_system_is_the_source_unless_another_is_given() -> None:
    assert sample_noise.__defaults__ == (secrets.randbelow,)
