import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import minimize

from samara.shared.tasks.label_scores import cross_entropy
from samara.shared.tasks.profiled_loss import fitted_shift, profiled_cross_entropy, shifts_of_rows

SCORES = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=3, max_dims=3, min_side=1, max_side=6),
    elements=st.floats(-20, 20, width=32),
)


def labels_of(scores: np.ndarray, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, scores.shape[2], scores.shape[1])


def drawn(
    perturbations: int, rows: int, width: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores that favour one label, and labels."""
    rng = np.random.default_rng(seed)
    scores = 2 * rng.normal(size=(perturbations, rows, width)) + 3 * rng.normal(size=width)
    return scores.astype(np.float32), rng.integers(0, width, rows)


@given(SCORES, st.integers(0, 9))
def test_a_shift_never_raises_the_loss(scores: np.ndarray, seed: int) -> None:
    labels = labels_of(scores, seed)
    assert (profiled_cross_entropy(scores, labels) <= cross_entropy(scores, labels) + 1e-12).all()


@given(SCORES, st.integers(0, 9), st.floats(-100, 100, width=16))
def test_what_all_labels_of_a_row_share_changes_nothing(
    scores: np.ndarray, seed: int, added: float
) -> None:
    labels = labels_of(scores, seed)
    by_row = added * np.arange(scores.shape[1])[:, None]
    moved = profiled_cross_entropy(scores.astype(np.float64) + by_row, labels)  # type: ignore[arg-type]
    np.testing.assert_allclose(moved, profiled_cross_entropy(scores, labels), atol=1e-9)


@given(SCORES, st.integers(0, 9), hnp.arrays(np.float64, 6, elements=st.floats(-5, 5)))
def test_a_shift_of_all_answers_costs_no_more_than_its_penalty(
    scores: np.ndarray, seed: int, added: np.ndarray
) -> None:
    labels, own = labels_of(scores, seed), added[: scores.shape[2]]
    shift, rows = fitted_shift(scores, labels), scores.shape[1]
    taken_back = (np.square(shift - own).sum(1) - np.square(shift).sum(1)) / (2 * rows)
    moved = profiled_cross_entropy(scores.astype(np.float64) + own, labels)  # type: ignore[arg-type]
    assert (moved <= profiled_cross_entropy(scores, labels) + taken_back + 1e-9).all()


@pytest.mark.parametrize("width", [2, 6])
def test_the_shift_is_the_best_one(width: int) -> None:
    scores, labels = drawn(3, 16, width)
    shift = fitted_shift(scores, labels)
    np.testing.assert_allclose(shift.sum(axis=1), 0, atol=1e-12)
    for own, found, loss in zip(scores, shift, profiled_cross_entropy(scores, labels), strict=True):

        def penalized(b: np.ndarray, own: np.ndarray = own) -> float:
            (mean,) = cross_entropy((own + b)[None], labels)
            return float(mean + b @ b / (2 * len(labels)))

        best = minimize(penalized, np.zeros(width), options={"gtol": 1e-9})
        assert loss == pytest.approx(best.fun, abs=1e-9)
        np.testing.assert_allclose(found, best.x, atol=1e-4)


def test_the_gradient_is_the_plain_one_at_the_best_shift() -> None:
    scores, labels = drawn(1, 12, 4)
    exact, step = scores.astype(np.float64), 1e-4
    direction = np.random.default_rng(1).normal(size=exact.shape)
    plus, minus = (
        profiled_cross_entropy(exact + sign * step * direction, labels) for sign in (1, -1)
    )
    shifted = exact[0] + fitted_shift(scores, labels)
    shares = np.exp(shifted - shifted.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    shares[np.arange(12), labels] -= 1
    expected = float((shares * direction[0]).sum()) / 12
    assert (plus - minus)[0] / (2 * step) == pytest.approx(expected, rel=1e-6)
    plain = np.subtract(*(cross_entropy(exact + s * step * direction, labels) for s in (1, -1)))
    assert abs(plain[0] / (2 * step) - expected) > 1e-3  # so that the comparison can fail


@pytest.mark.parametrize("scale", [0.01, 1, 10])
def test_steps_suffice_for_scores_of_any_scale(scale: float) -> None:
    """Differences of losses are divided by ε, so they need more digits than a single loss."""
    scores, labels = drawn(5, 32, 6)
    scores *= np.float32(scale)
    shift = fitted_shift(scores, labels)
    shifted = scores.astype(np.float64) + shift[:, None]
    shares = np.exp(shifted - shifted.max(2, keepdims=True))
    shares /= shares.sum(2, keepdims=True)
    slope = shares.mean(1) - np.bincount(labels, minlength=6) / 32 + shift / 32
    np.testing.assert_allclose(slope, 0, atol=1e-9)


def test_a_perturbation_has_the_same_bits_alone() -> None:
    scores, labels = drawn(7, 16, 6)
    together = profiled_cross_entropy(scores, labels)
    alone = [profiled_cross_entropy(scores[i : i + 1], labels)[0] for i in range(7)]
    assert together.tolist() == alone


def test_scores_that_are_not_finite_spoil_their_own_loss_alone() -> None:
    scores, labels = drawn(3, 4, 2)
    clean = profiled_cross_entropy(scores, labels)
    scores[1, 2, 0], scores[2, 0, 1] = np.nan, np.inf
    losses = profiled_cross_entropy(scores, labels)
    assert losses[0] == clean[0]
    assert not np.isfinite(losses[1:]).any()


def test_one_label_alone_teaches_little() -> None:
    scores = np.zeros((1, 16, 2), np.float32)
    labels = np.zeros(16, np.int64)
    assert profiled_cross_entropy(scores, labels)[0] < 0.25 < cross_entropy(scores, labels)[0]


def test_every_client_has_a_shift_of_its_own() -> None:
    scores, labels = drawn(1, 8, 3)
    whole = labels.reshape(2, 4)
    shifts, penalties = shifts_of_rows(scores[0], whole)
    assert shifts.shape == (8, 3)
    for client, rows in enumerate((slice(0, 4), slice(4, 8))):
        own = fitted_shift(scores[:, rows], labels[rows])[0]
        assert shifts[rows].tolist() == [own.tolist()] * 4
        assert penalties[client] == pytest.approx(own @ own / 8)
