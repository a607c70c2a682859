"""Shamir's secret sharing: any t of n shares give the secret, and fewer say nothing of it.

Shamir, How to Share a Secret (1979): shares are the values of a random polynomial of degree t − 1
whose value at 0 is the secret, over a prime field that is larger than every secret.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence

PRIME = 2**256 + 297
"""The least prime above all secrets, which are numbers of 256 bits."""
SHARE_BYTES = 33
"""The bytes of a share, little-endian."""


def split_secret(
    secret: int,
    points: Sequence[int],
    threshold: int,
    below: Callable[[int], int] = secrets.randbelow,
) -> list[int]:
    """Return one share of a secret for each point.

    Args:
        secret: number below `PRIME`.
        points: where the polynomial is evaluated: different numbers from 1 to `PRIME` − 1.
        threshold: t, the number of shares that give the secret; from 1 to the number of points.
        below: source of randomness; the operating system's by default.

    Raises:
        ValueError: if an argument is out of its range.
    """
    if not 0 <= secret < PRIME or not 1 <= threshold <= len(points):
        raise ValueError("a secret or a threshold out of its range")
    _check_points(points)
    coefficients = [below(PRIME) for _ in range(threshold - 1)]
    shares = []
    for point in points:
        value = 0
        for coefficient in coefficients:
            value = (value + coefficient) * point % PRIME
        shares.append((value + secret) % PRIME)
    return shares


def combine_shares(shares: Mapping[int, int]) -> int:
    """Return the secret that shares are of: Lagrange's interpolation at 0.

    Shares that are too few or forged give another number; who knows something of the secret, as
    its hash, checks it.

    Args:
        shares: share by point; as many as the threshold.

    Raises:
        ValueError: if a point is out of its range, or there is none.
    """
    points = list(shares)
    _check_points(points)
    secret = 0
    for point, value in shares.items():
        numerator = denominator = 1
        for other in points:
            if other != point:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - point) % PRIME
        secret = (secret + value * numerator * pow(denominator, -1, PRIME)) % PRIME
    return secret


def _check_points(points: Sequence[int]) -> None:
    sound = all(0 < point < PRIME for point in points)
    if not points or len(set(points)) != len(points) or not sound:
        raise ValueError("points must be different, and neither 0 nor out of the field")
