"""An objective in a package of its own: the cross-entropy, bounded for each example.

Examples with a wrong label have the largest losses; a bound keeps them from deciding a step. Once
this package is installed, every process on the machine knows it by the name of its entry point:

    pip install ./examples/package
    samara simulate SCENARIO --set objective=bounded

A live client must have it too; one that lacks it, or has another version, refuses the run.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

BOUND = 2.0
"""Largest loss of an example, in nats."""


def bounded(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean over rows of min(cross-entropy, bound) of each perturbation, float64 [P]."""
    log_p = log_softmax(scores.astype(np.float64), axis=2)[:, np.arange(len(labels)), labels]
    means: NDArray[np.float64] = np.minimum(-log_p, BOUND).mean(axis=1)
    return means
