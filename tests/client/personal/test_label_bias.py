"""The label-bias baseline reaches the minimum of its convex loss for any number of labels."""

import warnings

import numpy as np
import pytest
from numpy.typing import NDArray

from samara.client.personal import lbfgs
from samara.client.personal import newton as newton_solver
from samara.client.personal.label_bias import BIAS_PENALTY, base_rate, fit_label_bias
from samara.shared.errors import TrainingError

Floats = NDArray[np.float64]


def loss(scores: Floats, labels: NDArray[np.int64], bias: Floats) -> float:
    logits = scores + bias
    log_sums = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    own = logits[np.arange(len(labels)), labels]
    return float(np.mean(log_sums - own) + BIAS_PENALTY * bias @ bias)


def newton(scores: Floats, labels: NDArray[np.int64]) -> Floats:
    """The minimum by Newton's method with halved steps, until the gradient vanishes."""
    count = scores.shape[1]
    bias, frequencies = np.zeros(count), np.bincount(labels, minlength=count) / len(labels)
    for _ in range(100):
        logits = scores + bias
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        gradient = p.mean(0) - frequencies + 2 * BIAS_PENALTY * bias
        if np.abs(gradient).max() < 1e-13:
            return bias
        hessian = np.diag(p.mean(0)) - p.T @ p / len(p) + 2 * BIAS_PENALTY * np.eye(count)
        step, size = np.linalg.solve(hessian, gradient), 1.0
        while size > 1e-9 and loss(scores, labels, bias - size * step) > loss(scores, labels, bias):
            size /= 2
        bias = bias - size * step
    return bias


def examples(count: int, rows: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scores that favour some labels, and labels with other frequencies; one label never occurs."""
    random = np.random.default_rng(seed)
    scores = random.normal(0, 2, (rows, count)) + random.normal(0, 2, count)
    frequencies = random.dirichlet(np.full(count - 1, 0.5))
    return scores.astype(np.float32), random.choice(count - 1, rows, p=frequencies)


@pytest.mark.parametrize(("count", "rows"), [(2, 40), (6, 60), (6, 300), (50, 120), (50, 2000)])
def test_the_bias_is_the_minimum_of_its_loss(count: int, rows: int) -> None:
    for seed in range(3):
        scores, labels = examples(count, rows, seed)
        exact = scores.astype(np.float64)
        expected = newton(exact, labels)
        least = loss(exact, labels, expected)
        for solve, near in ((lbfgs.fit_softmax, 1e-3), (newton_solver.fit_softmax, 1e-5)):
            bias = fit_label_bias(scores, labels, solve)
            assert bias.dtype == np.float32
            assert loss(exact, labels, bias.astype(np.float64)) == pytest.approx(least, abs=1e-7)
            np.testing.assert_allclose(bias, expected, rtol=0, atol=near)


def test_a_label_that_never_occurs_gets_a_finite_bias() -> None:
    bias = fit_label_bias(
        np.zeros((8, 3), np.float32), np.array([0, 0, 0, 0, 1, 1, 1, 1]), lbfgs.fit_softmax
    )
    assert bias[0] == pytest.approx(bias[1], abs=1e-5)
    assert -10 < bias[2] < bias[0] - 2
    assert bias.sum() == pytest.approx(0, abs=1e-5)


def test_scores_that_are_not_finite_are_refused() -> None:
    with warnings.catch_warnings(), pytest.raises(TrainingError, match="not finite"):
        fit_label_bias(np.array([[0, np.nan]], np.float32), np.array([0]), lbfgs.fit_softmax)


def test_an_optimizer_that_does_not_converge_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samara.client.personal.lbfgs._MAX_ITERATIONS", 1)
    scores, labels = examples(6, 60, 0)
    with pytest.raises(TrainingError, match="L-BFGS did not converge in 1 iterations"):
        fit_label_bias(scores, labels, lbfgs.fit_softmax)


def test_base_rate_counts_every_label_once_more() -> None:
    rates = np.exp(base_rate(np.array([0, 0, 2]), 3))
    np.testing.assert_allclose(rates, [3 / 6, 1 / 6, 2 / 6], rtol=1e-6)
