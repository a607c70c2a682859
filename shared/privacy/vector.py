"""A client's vector in a round: all reported numbers, clipped together, as integers.

The numbers are K·q projected gradients, the mean loss, the curvature (clients send its root,
`curvature_root`) and a constant 1. The norm of the whole vector is at most `SENSITIVITY`. A
client's presence changes a sum by at most this norm, so the noise is scaled to it. Each of the last
three numbers has 1/16 of the squared norm. These three numbers increase the noise relative to the
projected gradients by a factor of 1.11 (`gradient_noise`). With an adaptive clip there is a fourth
such number, the indicator: 1 for a client whose norm is within the clip, and −1 for any other. The
factor is then 1.15.

Sums cannot wrap. The norm limits every number of a vector to 2²⁴, and a sum has at most 2²⁰ vectors
(`MAX_VECTORS`), so a sum is within ±2⁴⁴. Noise is added in Python's integers. The noised result is
then limited to ±2⁶², which costs no privacy. Clients that add noise themselves limit their noised
numbers to ±2⁴², so that their sums are within ±2⁶² too.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samara.shared.privacy.discrete_gaussian import Noise, sample_noise

SENSITIVITY = 2**24
"""Largest norm of a vector, in its integer units."""
MAX_VECTORS = 2**20
"""Largest number of vectors in a sum."""
LOSS_LIMIT = 2.0
"""Largest mean loss in a vector, in nats; a larger loss is clipped to this value."""
CURVATURE_LIMIT = 64.0
"""Largest absolute curvature in a vector; a larger one is clipped to this value."""
CURVATURE_SCALE = math.sqrt(CURVATURE_LIMIT)
"""Factor on √curvature with which the roots fill the same range as the curvatures."""
OTHERS = 3
"""Count of the numbers after the projected gradients, without indicator: loss, curvature and 1."""

NOISED_LIMIT = 2**42
"""Largest absolute number of a vector after a client has added noise."""

_SHARE = SENSITIVITY // 4
_MOST = 2**62
# In float64 the norm of 2²⁰ numbers has a rounding error below 2⁻³², so a norm that float64 puts
# this far below the limit is within it.
_MARGIN = 1 - 2.0**-30
_LEAST_CLIP = 1e-60
"""A norm smaller than every nonzero norm of float32 numbers; it prevents a division by 0."""


@dataclass(frozen=True, eq=False)
class VectorSum:
    """A noised sum of vectors in the original units.

    Attributes:
        gradients: sums of clipped projected gradients, float64 [K · q].
        loss: sum of mean losses.
        curvature: sum of curvatures.
        count: noised number of vectors.
        within: sum of the indicators; 0 without them.
    """

    gradients: NDArray[np.float64]
    loss: float
    curvature: float
    count: float
    within: float = 0.0


def curvature_root(curvature: float) -> float:
    """Return the number in which a client sends its curvature, `CURVATURE_SCALE`·√|curvature|.

    Step sizes are divided by the root of the curvature. A typical curvature of 1 is 1/64 of the
    range of curvatures, but its root is 1/8 of the range of roots. So the root is larger relative
    to the noise.

    Args:
        curvature: curvature of either sign. `CURVATURE_LIMIT` is mapped to itself.
    """
    return CURVATURE_SCALE * math.sqrt(abs(curvature))


def encode_vector(
    gradients: NDArray[np.float32],
    loss: float,
    curvature: float | None,
    clip: float,
    has_indicator: bool = False,
) -> NDArray[np.int32]:
    """Return a client's vector, int32 [K · q + 3 or 4]; its norm is at most `SENSITIVITY`.

    Numbers are rounded towards zero, so that rounding never increases the norm.

    Args:
        gradients: projected gradients, float32 [K, q], finite.
        loss: mean loss, finite.
        curvature: mean curvature, finite; None if it was not measured, which counts as 0.
        clip: largest L2 norm of the projected gradients; longer vectors are scaled down to it.
        has_indicator: whether the vector includes the indicator.
    """
    exact = gradients.astype(np.float64).ravel()
    norm = float(np.linalg.norm(exact))
    scale = _gradient_limit(has_indicator) * _MARGIN / max(norm, clip, _LEAST_CLIP)
    others = [
        np.clip(loss / LOSS_LIMIT, -1, 1),
        np.clip((curvature or 0.0) / CURVATURE_LIMIT, -1, 1),
        1,
    ]
    if has_indicator:
        others.append(1 if norm <= clip else -1)
    numbers = np.trunc(np.append(exact * scale, np.multiply(others, _SHARE)))
    vector: NDArray[np.int32] = numbers.astype(np.int32)
    return vector


def numbers_of(scalars: int, has_indicator: bool = False) -> int:
    """Return the length of a vector with `scalars` projected gradients."""
    return scalars + OTHERS + has_indicator


def gradient_noise(has_indicator: bool = False) -> float:
    """Return the standard deviation of the noise on a projected gradient, divided by clip · z."""
    return SENSITIVITY / _gradient_limit(has_indicator)


def _gradient_limit(has_indicator: bool) -> int:
    """Return the largest norm of the projected gradients in a vector, in integer units."""
    return math.isqrt(SENSITIVITY**2 - (OTHERS + has_indicator) * _SHARE**2)


def add_noise(
    vector: NDArray[np.int32], sigma: int, noise: Noise = sample_noise
) -> NDArray[np.int64]:
    """Return a client's vector with its own noise, int64 [n], limited to `NOISED_LIMIT`.

    Args:
        vector: vector with a norm of at most `SENSITIVITY`, int32 [n].
        sigma: σ of the discrete Gaussian noise on every number.
        noise: source of noise; the operating system's randomness by default.
    """
    return _limited(vector.astype(object) + noise(len(vector), sigma), NOISED_LIMIT)


def is_within_sensitivity(vector: NDArray[np.int32]) -> bool:
    """Return whether a vector's norm is at most `SENSITIVITY`, computed without rounding."""
    largest = int(np.abs(vector.astype(np.int64)).max(initial=0))
    if largest > SENSITIVITY:
        return False
    # at most 2²⁰ squares of at most 2⁴⁸ each: summed in two halves, each exact in int64
    squares = np.square(vector.astype(np.int64))
    high, low = int((squares >> 24).sum()), int((squares & (2**24 - 1)).sum())
    return (high << 24) + low <= SENSITIVITY**2


def limit_sum(total: NDArray[np.object_]) -> NDArray[np.int64]:
    """Limit a noised sum, Python integers [n], to ±2⁶², and return it as int64 [n]."""
    return _limited(total, _MOST)


def read_sum(
    total: NDArray[np.int64] | NDArray[np.float64], clip: float, has_indicator: bool = False
) -> VectorSum:
    """Convert a sum of vectors to the original units.

    Args:
        total: noised sum in integer units, int64 or float64 [K · q + 3 or 4].
        clip: largest norm of a client's projected gradients.
        has_indicator: whether the vectors include the indicator.
    """
    numbers = total.astype(np.float64)
    others = OTHERS + has_indicator
    loss, curvature, count, *within = (numbers[-others:] / _SHARE).tolist()
    return VectorSum(
        numbers[:-others] * (clip / _gradient_limit(has_indicator)),
        loss * LOSS_LIMIT,
        curvature * CURVATURE_LIMIT,
        count,
        *within,
    )


def noise_of_others(noise_multiplier: float) -> tuple[float, float, float]:
    """Return the standard deviations of the noise in a sum's loss, curvature and count."""
    sigma = noise_multiplier * SENSITIVITY / _SHARE
    return sigma * LOSS_LIMIT, sigma * CURVATURE_LIMIT, sigma


def _limited(numbers: NDArray[np.object_], most: int) -> NDArray[np.int64]:
    """Return Python integers [n] as int64, limited to ±`most`."""
    return np.array([max(-most, min(most, int(number))) for number in numbers], np.int64)
