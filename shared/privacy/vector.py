"""A client's vector in a round: all that it says, clipped as a whole, in whole numbers.

The numbers are K·q projected gradients, the mean loss, the curvature (clients tell its root,
`curvature_root`) and a 1. The norm of the whole vector is at most `SENSITIVITY`, which is what a
client can change in a sum, present or absent: the sensitivity that the noise is made for. Of its
square each of the last three numbers has 1/16, which makes the noise on projected gradients
`gradient_noise` = 1.11 times what it would be without them. Where the clip is adaptive, a fourth
such number, the indicator, is 1 for a client whose norm is within the clip and −1 for any other,
and the noise is 1.15 times as much.

Sums cannot wrap. A number of one vector is at most 2²⁴ in size, since the norm is, and there are at
most 2²⁰ vectors in a sum (`MAX_VECTORS`), so a sum is within ±2⁴⁴. Noise is added to it as Python's
integers, and the result is limited to ±2⁶², which is done after the noise and costs no privacy.
Where clients add noise themselves, each limits its numbers to ±2⁴² after that, so that sums are
within ±2⁶², too.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samara.shared.privacy.discrete_gaussian import Noise, sample_noise

SENSITIVITY = 2**24
"""The largest norm of a vector, in units of its whole numbers."""
MAX_VECTORS = 2**20
"""The most vectors in a sum."""
LOSS_LIMIT = 2.0
"""The largest mean loss that counts in a sum, in nats; larger ones count as this."""
CURVATURE_LIMIT = 64.0
"""The largest curvature that counts in a sum, either sign."""
CURVATURE_SCALE = math.sqrt(CURVATURE_LIMIT)
"""The factor on the root of a curvature, by which it has the range of curvatures."""
OTHERS = 3
"""The numbers of a vector beside its projected gradients: loss, curvature, 1; an indicator is one
more."""

NOISED_LIMIT = 2**42
"""The largest size of a number of a vector to which a client has added noise."""

_SHARE = SENSITIVITY // 4
_MOST = 2**62
# Rounding of the norm of 2²⁰ numbers in float64 is below 2⁻³², so that a norm that float64 makes
# this much smaller than the limit is within it.
_MARGIN = 1 - 2.0**-30
_LEAST_CLIP = 1e-60
"""A norm below those of float32, by which numbers can be divided."""


@dataclass(frozen=True, eq=False)
class VectorSum:
    """A sum of vectors, noised, in the units of what was measured.

    Attributes:
        gradients: sums of clipped projected gradients, float64 [K · q].
        loss: sum of mean losses.
        curvature: sum of curvatures.
        count: number of vectors, as far as the noise lets it be known.
        within: sum of the indicators; 0 without them.
    """

    gradients: NDArray[np.float64]
    loss: float
    curvature: float
    count: float
    within: float = 0.0


def curvature_root(curvature: float) -> float:
    """Return the number by which a client tells its curvature, `CURVATURE_SCALE`·√|curvature|.

    A step size is divided by the root of the curvature. A usual one of 1 is 1/64 of the range of
    curvatures, and its root 1/8 of the range of roots, so that the same noise hides less of it.

    Args:
        curvature: curvature, either sign; its limit has a number of `CURVATURE_LIMIT`.
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

    Numbers are rounded towards zero, so that rounding makes no norm larger.

    Args:
        gradients: projected gradients, float32 [K, q], finite.
        loss: mean loss, finite.
        curvature: mean curvature, finite; None if it was not measured, which counts as 0.
        clip: largest L2 norm of the projected gradients; longer ones are scaled down to it.
        has_indicator: whether the vector says if the norm is within the clip.
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
    """Return the number of numbers in a vector with so many projected gradients."""
    return scalars + OTHERS + has_indicator


def gradient_noise(has_indicator: bool = False) -> float:
    """Return the noise on a projected gradient in units of clip · noise multiplier."""
    return SENSITIVITY / _gradient_limit(has_indicator)


def _gradient_limit(has_indicator: bool) -> int:
    """Return the largest norm of the projected gradients in a vector, in whole numbers."""
    return math.isqrt(SENSITIVITY**2 - (OTHERS + has_indicator) * _SHARE**2)


def add_noise(
    vector: NDArray[np.int32], sigma: int, noise: Noise = sample_noise
) -> NDArray[np.int64]:
    """Return a client's vector with noise of its own, int64 [n], limited to `NOISED_LIMIT`.

    Args:
        vector: vector of a norm of at most `SENSITIVITY`, int32 [n].
        sigma: σ of the discrete Gaussian noise on every number.
        noise: source of noise; the operating system's randomness by default.
    """
    return _limited(vector.astype(object) + noise(len(vector), sigma), NOISED_LIMIT)


def is_within_sensitivity(vector: NDArray[np.int32]) -> bool:
    """Return whether a vector's norm is at most `SENSITIVITY`, exactly."""
    largest = int(np.abs(vector.astype(np.int64)).max(initial=0))
    if largest > SENSITIVITY:
        return False
    # at most 2²⁰ squares of at most 2⁴⁸: in two halves, each exact in int64
    squares = np.square(vector.astype(np.int64))
    high, low = int((squares >> 24).sum()), int((squares & (2**24 - 1)).sum())
    return (high << 24) + low <= SENSITIVITY**2


def limit_sum(total: NDArray[np.object_]) -> NDArray[np.int64]:
    """Return a noised sum, Python integers [n], limited to the range in which it is kept, int64."""
    return _limited(total, _MOST)


def read_sum(
    total: NDArray[np.int64] | NDArray[np.float64], clip: float, has_indicator: bool = False
) -> VectorSum:
    """Return a sum of vectors in the units of what was measured.

    Args:
        total: noised sum in whole numbers, int64 or float64 [K · q + 3 or 4].
        clip: largest norm of a client's projected gradients.
        has_indicator: whether the vectors say if their norm is within the clip.
    """
    numbers, others = total.astype(np.float64), OTHERS + has_indicator
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
    """Return Python integers [n] as int64, none farther from zero than `most`."""
    return np.array([max(-most, min(most, int(number))) for number in numbers], np.int64)
