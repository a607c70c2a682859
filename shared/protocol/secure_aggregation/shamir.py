"""Shamir's secret sharing: any t of n shares determine the secret, and fewer reveal nothing.

Shamir, How to Share a Secret (1979). Shares are the values of a random polynomial of degree t − 1
over a prime field larger than every secret. The value of the polynomial at 0 is the secret.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence

PRIME = 2**256 + 297
"""Least prime above all secrets, which are 256-bit numbers."""
SHARE_BYTES = 33
"""Size in bytes of a share, which is little-endian."""


def split_secret(
    secret: int,
    points: Sequence[int],
    threshold: int,
    below: Callable[[int], int] = secrets.randbelow,
) -> list[int]:
    """Return one share of a secret for each point.

    Args:
        secret: number below `PRIME`.
        points: distinct points from 1 to `PRIME` − 1 at which the polynomial is evaluated.
        threshold: t, the number of shares that determine the secret; from 1 to the number of
            points.
        below: source of randomness; the operating system's by default.

    Raises:
        ValueError: if an argument is out of range.
    """
    if not 0 <= secret < PRIME or not 1 <= threshold <= len(points):
        raise ValueError("the secret or the threshold is out of range")
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
    """Return the secret by Lagrange interpolation of its shares at 0.

    Too few or forged shares give a different number. A caller that knows a hash of the secret can
    detect this.

    Args:
        shares: share by point; as many as the threshold.

    Raises:
        ValueError: if a point is out of range, or there are no shares.
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
        raise ValueError("points must be distinct, nonzero and within the field")
