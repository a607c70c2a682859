"""A custom estimator with an error of fourth order: central differences at two distances.

The error of (L(B + ε·z) − L(B − ε·z)) / 2ε is ε²/6 times the third derivative along z. This error
cancels if differences D at ε and at 2ε are combined (Richardson, 1911): g = (4·D(ε) − D(2ε)) / 3.
This takes twice as many losses. The combination amplifies the noise of the losses by 4/3. It
therefore needs a larger ε, which its small error allows.

    python examples/estimator_fourth_order.py
"""

import numpy as np
from numpy.typing import NDArray

import samara
from samara.register import Estimator, GradientEstimate, LossRequest


def fourth_order(seeds: NDArray[np.uint64], batch: NDArray[np.int64], epsilon: float) -> Estimator:
    """Request the losses at ±ε and ±2ε along every direction, and return projected gradients."""
    differences, losses = [], []
    for distance in (epsilon, 2 * epsilon):
        both = yield LossRequest(seeds, distance, batch)
        plus, minus = np.split(both, 2)
        differences.append((plus - minus) / (2 * distance))
        losses.append(both.mean())
    gradients = (4 * differences[0] - differences[1]) / 3
    return GradientEstimate(gradients.astype(np.float32), float(np.mean(losses)))


def main(rounds: int = 10, clients: int = 8) -> samara.Comparison:
    """Compare the estimator with plain differences at a large ε; print and return the result."""
    samara.register.estimator("fourth-order", fourth_order)
    settings = {
        "rounds": rounds,
        "data.clients": clients,
        "personal.rounds": 0,
        "epsilon": 0.1,
    }
    plain, own = (
        samara.simulate(settings, gradients=name) for name in ("differences", "fourth-order")
    )
    comparison = plain.compare(own)
    print(comparison)
    return comparison


if __name__ == "__main__":
    main()
