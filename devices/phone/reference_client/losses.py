"""Losses of scores, in numpy."""

import numpy as np
from numpy.typing import NDArray


def cross_entropies(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return −log softmax of scores [P, n, labels] at the labels [n], float64 [P, n], in nats."""
    exact = scores.astype(np.float64)
    shifted = exact - exact.max(axis=2, keepdims=True)
    right = shifted[:, np.arange(len(labels)), labels]
    losses: NDArray[np.float64] = np.log(np.exp(shifted).sum(axis=2)) - right
    return losses
