"""Exact samples of the discrete Gaussian, from the operating system's randomness.

Canonne, Kamath, Steinke, The Discrete Gaussian for Differential Privacy (2020), Algorithms 1 to 3.
The algorithms use only integers and rational probabilities, so that no float rounding reveals the
hidden values (Mironov, 2012). Nobody may know the noise of a release. So the noise never comes from
Philox, whose seeds are sent over the network. The time to draw a sample depends on its value, so
this time should not be measurable from outside.
"""

import secrets
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Below = Callable[[int], int]
"""A source of randomness: maps n to a uniform integer from 0 to n − 1."""
Noise = Callable[[int, int], NDArray[np.object_]]
"""A source of noise: maps count and σ to discrete Gaussian samples, Python integers [count]."""


def sample_noise(count: int, sigma: int, below: Below = secrets.randbelow) -> NDArray[np.object_]:
    """Return independent samples of the discrete Gaussian, Python integers of any size [count].

    The probability of an integer x is proportional to exp(−x²/(2σ²)).

    Args:
        count: number of samples.
        sigma: σ, an integer above 0.
        below: source of randomness; the operating system's by default.
    """
    samples = np.empty(count, object)
    samples[:] = [_gaussian(sigma, below) for _ in range(count)]
    return samples


def _gaussian(sigma: int, below: Below) -> int:
    """Return a sample of the discrete Gaussian (Algorithm 3)."""
    scale = sigma + 1
    variance = sigma * sigma
    while True:
        sample = _laplace(scale, below)
        # exp(−(|y| − σ²/t)² / (2σ²)), with numerator and denominator multiplied by t²
        distance = abs(sample) * scale - variance
        if _bernoulli_exp(distance * distance, 2 * variance * scale * scale, below):
            return sample


def _laplace(scale: int, below: Below) -> int:
    """Return a sample x with a probability proportional to exp(−|x|/scale) (Algorithm 2)."""
    while True:
        remainder = below(scale)
        if not _bernoulli_exp(remainder, scale, below):
            continue
        multiples = 0
        while _bernoulli_exp(1, 1, below):
            multiples += 1
        size = remainder + scale * multiples
        is_negative = below(2)
        if size or not is_negative:  # otherwise 0 would count twice
            return -size if is_negative else size


def _bernoulli_exp(numerator: int, denominator: int, below: Below) -> bool:
    """Return true with probability exp(−numerator/denominator) (Algorithm 1)."""
    whole, rest = divmod(numerator, denominator)
    for _ in range(whole):
        if not _bernoulli_exp_of_fraction(1, 1, below):
            return False
    return _bernoulli_exp_of_fraction(rest, denominator, below)


def _bernoulli_exp_of_fraction(numerator: int, denominator: int, below: Below) -> bool:
    """Return true with probability exp(−γ) for a fraction γ from 0 to 1, by its series."""
    count = 1
    while below(denominator * count) < numerator:
        count += 1
    return count % 2 == 1
