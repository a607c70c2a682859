"""Laws of a client's vector: it stays within its sensitivity, and sums cannot wrap."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from samara.shared.privacy.vector import (
    CURVATURE_LIMIT,
    LOSS_LIMIT,
    MAX_VECTORS,
    NOISED_LIMIT,
    OTHERS,
    SENSITIVITY,
    add_noise,
    encode_vector,
    gradient_noise,
    is_within_sensitivity,
    limit_sum,
    read_sum,
)

FINITE = st.floats(-1e6, 1e6, width=32)
GRADIENTS = arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=40), elements=FINITE)
CLIPS = st.floats(1e-6, 1e6)
CURVATURES = st.none() | st.floats(-1e12, 1e12)


def exact_square(vector: np.ndarray) -> int:
    return sum(number * number for number in vector.tolist())


@given(GRADIENTS, st.floats(-1e6, 1e6), CURVATURES, CLIPS, st.booleans())
def test_no_vector_is_longer_than_the_sensitivity(
    gradients: np.ndarray, loss: float, curvature: float | None, clip: float, has_indicator: bool
) -> None:
    vector = encode_vector(gradients, loss, curvature, clip, has_indicator)
    assert vector.shape == (gradients.size + OTHERS + has_indicator,)
    assert exact_square(vector) <= SENSITIVITY**2
    assert is_within_sensitivity(vector)


@pytest.mark.parametrize("number", [0.0, 1e-45, 3e38])
@pytest.mark.parametrize("clip", [5e-324, 1e-300, 1e6, math.inf])
def test_no_clip_that_a_server_names_makes_a_vector_longer(number: float, clip: float) -> None:
    gradients = np.full((2, 3), number, np.float32)
    assert is_within_sensitivity(encode_vector(gradients, 0.5, 1.0, clip, has_indicator=True))


@given(arrays(np.int32, st.integers(1, 50)))
def test_the_check_of_the_norm_is_exact(vector: np.ndarray) -> None:
    assert is_within_sensitivity(vector) == (exact_square(vector) <= SENSITIVITY**2)


def test_the_check_of_the_norm_is_exact_at_its_limit() -> None:
    assert is_within_sensitivity(np.array([SENSITIVITY, 0], np.int32))
    assert not is_within_sensitivity(np.array([SENSITIVITY, 1], np.int32))
    assert not is_within_sensitivity(np.array([-(2**31)], np.int32))
    assert is_within_sensitivity(np.full(2**20, 2**14, np.int32))
    assert not is_within_sensitivity(np.full(2**20 + 1, 2**14, np.int32))


@given(GRADIENTS, st.floats(-10, 10), CURVATURES, CLIPS, st.integers(1, MAX_VECTORS))
def test_a_sum_of_the_most_vectors_cannot_wrap(
    gradients: np.ndarray, loss: float, curvature: float | None, clip: float, count: int
) -> None:
    vector = encode_vector(gradients, loss, curvature, clip)
    wrapped = vector.astype(np.int64) * count
    assert wrapped.tolist() == [number * count for number in vector.tolist()]
    assert abs(wrapped).max() <= 2**44
    noise = np.array([(-1) ** i * 10**40 for i in range(len(vector))], object)
    limited = limit_sum(wrapped.astype(object) + noise)
    assert abs(limited).max() == 2**62


@given(GRADIENTS, st.floats(-LOSS_LIMIT, LOSS_LIMIT), st.floats(-CURVATURE_LIMIT, CURVATURE_LIMIT))
def test_a_sum_without_noise_says_what_the_clients_said(
    gradients: np.ndarray, loss: float, curvature: float
) -> None:
    norm = float(np.linalg.norm(gradients.astype(np.float64)))
    clip = max(norm, 1e-3)
    vectors = [encode_vector(gradients, loss, curvature, clip) for _ in range(3)]
    total = read_sum(limit_sum(np.sum(vectors, axis=0, dtype=object)), clip)
    tolerance = 3 * clip * 2.0**-22
    np.testing.assert_allclose(
        total.gradients, 3 * gradients.astype(np.float64).ravel(), atol=tolerance
    )
    assert math.isclose(total.loss, 3 * loss, abs_tol=1e-5)
    assert math.isclose(total.curvature, 3 * curvature, abs_tol=1e-3)
    assert total.count == 3


def test_longer_gradients_keep_their_direction() -> None:
    gradients = np.array([[3.0, 4.0]], np.float32)
    total = read_sum(limit_sum(encode_vector(gradients, 0.0, None, 1.0).astype(object)), 1.0)
    np.testing.assert_allclose(total.gradients, [0.6, 0.8], rtol=1e-6)
    assert 1.1 < gradient_noise() < 1.11 < 1.15 < gradient_noise(has_indicator=True) < 1.16


def test_an_indicator_says_who_is_within_the_clip() -> None:
    """A norm equal to the clip is within the clip."""
    rows = ([3.0, 4.0], [0.3, 0.4], [30.0, 40.0])
    vectors = [
        encode_vector(np.array([row], np.float32), 0.5, 2.0, 5.0, has_indicator=True)
        for row in rows
    ]
    total = read_sum(np.sum(vectors, axis=0, dtype=np.int64), 5.0, has_indicator=True)
    assert (total.count, total.within) == (3, 1)
    np.testing.assert_allclose(total.gradients, [6.3, 8.4], rtol=1e-5)
    assert math.isclose(total.loss, 1.5, abs_tol=1e-5)
    assert math.isclose(total.curvature, 6.0, abs_tol=1e-3)


@given(
    arrays(np.int32, 5, elements=st.integers(-SENSITIVITY, SENSITIVITY)),
    st.integers(-(2**70), 2**70),
)
def test_noised_sums_cannot_wrap(vector: np.ndarray, noise: int) -> None:
    def known(count: int, sigma: int) -> np.ndarray:
        return np.array([noise] * count, object)

    noised = add_noise(vector, 1, known)
    assert noised.dtype == np.int64
    assert all(abs(number) <= NOISED_LIMIT for number in noised.tolist())
    exact = [max(-NOISED_LIMIT, min(NOISED_LIMIT, one + noise)) for one in vector.tolist()]
    assert noised.tolist() == exact
    assert MAX_VECTORS * NOISED_LIMIT <= 2**62
