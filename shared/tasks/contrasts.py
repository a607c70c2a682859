"""Contrasts between labels; a readout's weights have one row per contrast."""

import numpy as np
from numpy.typing import NDArray


def contrasts(labels: int) -> NDArray[np.float32]:
    """Return Helmert's orthonormal contrasts, float32 [labels − 1, labels]; rows sum to 0."""
    rows = np.tri(labels - 1, labels, dtype=np.float64)
    index = np.arange(1, labels)
    rows[index - 1, index] = -index
    basis: NDArray[np.float64] = rows / np.sqrt(index * (index + 1))[:, None]
    return basis.astype(np.float32)
