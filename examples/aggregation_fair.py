"""A custom aggregation rule that gives clients with a higher loss more weight.

q-FFL (Li et al., Fair Resource Allocation in Federated Learning, 2020, section 3) raises the loss
F of each client to a power. A gradient step on Σ F^(q+1)/(q+1) weighs a client's gradient by F^q.

A client gains weight by reporting a high loss. Use this rule only if you trust your clients, or
bound the losses that they report.

    python examples/aggregation_fair.py
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import samara

POWER = 1.0


def fair(contributions: Sequence[samara.register.Contribution]) -> NDArray[np.float64]:
    """Return weights in proportion to examples · loss^POWER, float64 [clients]; they sum to 1."""
    weights = np.array([one.examples * one.mean_loss**POWER for one in contributions])
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def main(rounds: int = 10, clients: int = 8) -> samara.Comparison:
    """Compare the rule with the mean, print the comparison, and return it."""
    samara.register.aggregation("fair", fair)
    settings = {"rounds": rounds, "data.clients": clients, "personal.rounds": 0}
    mean, own = (samara.simulate(settings, aggregation={"rule": rule}) for rule in ("mean", "fair"))
    comparison = mean.compare(own)
    print(comparison)
    return comparison


if __name__ == "__main__":
    main()
