"""Objectives: from the scores of a point to its one loss."""

import numpy as np
from numpy.typing import NDArray


def cross_entropy(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return each point's mean over its rows of −log softmax(scores)[label], in nats.

    Args:
        scores: float32 [points, rows, labels], a log-likelihood or similarity per label; at
            least one row.
        labels: int64 [rows], the true label of each row, the same under every point.

    Returns:
        float64 [points]. A point with a score of NaN or +∞ gets a loss that is not finite.
    """
    exact = scores.astype(np.float64)
    with np.errstate(invalid="ignore"):
        shifted = exact - exact.max(axis=2, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(axis=2))
    losses: NDArray[np.float64] = np.mean(
        log_sum - shifted[:, np.arange(len(labels)), labels], axis=1
    )
    return losses
