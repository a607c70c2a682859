"""Two baselines that know a client's labels and nothing of its texts: base rate and label bias."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import logsumexp

from shared.errors import TrainingError

BIAS_PENALTY = 1e-3
"""Factor of the squared norm that is added to the loss of a label bias.

It makes the minimum unique, with a sum of zero, and finite where a client lacks a label.
"""
_GRADIENT_TOLERANCE = 1e-7
_LOSS_TOLERANCE = 1e-14
_MAX_ITERATIONS = 10_000


def base_rate(labels: NDArray[np.int64], label_count: int) -> NDArray[np.float32]:
    """Return log frequencies of a client's training labels, each counted once more.

    Args:
        labels: int64 [n], from 0 to label_count − 1.
        label_count: number of labels of the task.

    Returns:
        float32 [label_count].
    """
    counts = np.bincount(labels, minlength=label_count) + 1
    frequencies: NDArray[np.float64] = counts / counts.sum()
    return np.log(frequencies).astype(np.float32)


def fit_label_bias(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the label bias with the least cross-entropy on a client's training examples.

    This is logistic regression on one indicator per label, with the base model's scores as
    offsets. The bias of a label that no example has would fall without bound; `BIAS_PENALTY`
    keeps it finite.

    Args:
        scores: float32 [n, labels] of the base model.
        labels: int64 [n].

    Returns:
        float32 [labels].

    Raises:
        TrainingError: if a score is not finite, or the optimizer does not converge.
    """
    if not np.all(np.isfinite(scores)):
        raise TrainingError(
            "label bias: a score of the base model is not finite; check the model's weights"
        )
    offsets = scores.astype(np.float64)
    rows, label_count = np.arange(len(labels)), scores.shape[1]
    frequencies = np.bincount(labels, minlength=label_count) / len(labels)

    def loss_and_gradient(bias: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        logits = offsets + bias
        log_sums = logsumexp(logits, axis=1, keepdims=True)
        loss = np.mean(log_sums[:, 0] - logits[rows, labels]) + BIAS_PENALTY * bias @ bias
        probabilities = np.exp(logits - log_sums).mean(axis=0)
        return float(loss), probabilities - frequencies + 2 * BIAS_PENALTY * bias

    result = minimize(
        loss_and_gradient,
        np.zeros(label_count),
        jac=True,
        method="L-BFGS-B",
        options={
            "gtol": _GRADIENT_TOLERANCE,
            "ftol": _LOSS_TOLERANCE,
            "maxiter": _MAX_ITERATIONS,
            "maxfun": _MAX_ITERATIONS,
        },
    )
    if not result.success:
        raise TrainingError(
            f"label bias: L-BFGS did not converge in {result.nit} iterations: {result.message}"
        )
    bias: NDArray[np.float32] = result.x.astype(np.float32)
    return bias
