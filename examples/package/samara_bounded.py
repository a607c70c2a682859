"""An objective in a separate package: the cross-entropy, bounded for each example.

Examples with a wrong label have the largest losses. A bound keeps them from dominating a step. Once
this package is installed, every process on the machine finds the objective by the name of its entry
point:

    pip install ./examples/package
    samara simulate SCENARIO --set objective=bounded

Live clients must install the package, too. A client without the package, or with another version of
it, refuses the run.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

BOUND = 2.0
"""Largest loss of an example, in nats."""


def bounded(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return each perturbation's mean of min(cross-entropy, BOUND) over the rows, float64 [P]."""
    log_p = log_softmax(scores.astype(np.float64), axis=2)[:, np.arange(len(labels)), labels]
    means: NDArray[np.float64] = np.minimum(-log_p, BOUND).mean(axis=1)
    return means
