"""Which clients take part in a round."""

import math
from collections.abc import Iterable

import numpy as np

from shared.directions import cohort_keys


def sample_cohort(
    run_seed: int, round_number: int, clients: Iterable[int], fraction: float, minimum: int
) -> list[int]:
    """The cohort of a round: a function of (run seed, round) and of who is there.

    Every client draws a number from the run seed, the round and its own index, and the smallest
    numbers win, so one client more or less changes at most one place in the cohort.

    Args:
        run_seed: the run's seed.
        round_number: the round.
        clients: indices of the clients that are present.
        fraction: share of them to pick, rounded up.
        minimum: pick at least so many, if there are.

    Returns:
        Device indices, ascending.
    """
    present = np.array(sorted(set(clients)), np.uint32)
    size = min(len(present), max(minimum, math.ceil(round(fraction * len(present), 9))))
    order = np.argsort(cohort_keys(run_seed, round_number, present), kind="stable")
    return sorted(int(client) for client in present[order[:size]])
