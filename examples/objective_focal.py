"""A custom objective: the focal loss, which gives less weight to examples that are already right.

Lin et al., Focal Loss for Dense Object Detection (2017), equation 4, without class weights:
−(1 − p)^γ·log p, where p is the probability of the right label. A zeroth-order step needs only the
value of a loss. An objective can therefore be any function of the scores, differentiable or not.

    python examples/objective_focal.py
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

import samara

GAMMA = 2.0


def focal(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean focal loss over the rows of each perturbation, float64 [P]."""
    log_p = log_softmax(scores.astype(np.float64), axis=2)[:, np.arange(len(labels)), labels]
    losses = -((1 - np.exp(log_p)) ** GAMMA) * log_p
    means: NDArray[np.float64] = losses.mean(axis=1)
    return means


def main(rounds: int = 10, clients: int = 8) -> samara.Comparison:
    """Compare the focal loss with the cross-entropy, print the result, and return it."""
    samara.register.objective("focal", focal)
    settings = {
        "rounds": rounds,
        "data.clients": clients,
        "personal.rounds": 0,
        "differences": "central",
    }
    plain, own = (samara.simulate(settings, objective=name) for name in ("cross-entropy", "focal"))
    comparison = plain.compare(own)
    print(comparison)
    return comparison


if __name__ == "__main__":
    main()
