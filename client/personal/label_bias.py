"""Two baselines that use a client's labels but not its texts: base rate and label bias."""

import numpy as np
from numpy.typing import NDArray

from samara.client.personal.softmax_fit import Examples, Solver

BIAS_PENALTY = 1e-3
"""Factor of the squared norm added to the loss of a label bias.

The penalty makes the minimum unique and finite, even if a client lacks a label. The numbers of the
minimum sum to zero.
"""


def base_rate(labels: NDArray[np.int64], label_count: int) -> NDArray[np.float32]:
    """Return the logarithms of the frequencies of a client's training labels.

    Each count is increased by one, so that a label without examples has a finite logarithm.

    Args:
        labels: int64 [n], from 0 to label_count − 1.
        label_count: number of labels of the task.

    Returns:
        float32 [label_count].
    """
    counts = np.bincount(labels, minlength=label_count) + 1
    frequencies: NDArray[np.float64] = counts / counts.sum()
    return np.log(frequencies).astype(np.float32)


def fit_label_bias(
    scores: NDArray[np.float32], labels: NDArray[np.int64], solve: Solver
) -> NDArray[np.float32]:
    """Return the label bias with the lowest cross-entropy on a client's training examples.

    This is logistic regression on one indicator per label, with the base model's scores as offsets.
    Without `BIAS_PENALTY`, the bias of a label without examples would fall without bound.

    Args:
        scores: float32 [n, labels] of the base model.
        labels: int64 [n].
        solve: solver of the fit.

    Returns:
        float32 [labels].

    Raises:
        TrainingError: if a score is not finite, or the solver does not converge.
    """
    label_count = scores.shape[1]
    examples = Examples(scores.astype(np.float64), labels, np.zeros((len(labels), 0)))
    contrasts = np.zeros((label_count - 1, label_count))  # without features, any values do
    fit = solve(examples, contrasts, BIAS_PENALTY, BIAS_PENALTY)
    bias: NDArray[np.float32] = fit.intercept.astype(np.float32)
    return bias
