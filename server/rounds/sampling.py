"""Cohort sampling: a pure function of the run seed, the round and the connected clients."""

import math
from collections.abc import Iterable

import numpy as np

from samara.shared.directions import cohort_keys


def sample_cohort(
    run_seed: int, round_number: int, clients: Iterable[int], fraction: float, minimum: int
) -> list[int]:
    """Return the cohort of a round.

    A number is derived for every client from the run seed, the round and the client index, and
    the clients with the smallest numbers are picked. So one connected client more or less changes
    at most one client of the cohort.

    Args:
        run_seed: seed of the run.
        round_number: number of the round.
        clients: indices of the clients to choose from.
        fraction: share of them to pick, rounded up.
        minimum: fewest clients to pick, if there are so many.

    Returns:
        Client indices, ascending.
    """
    candidates = np.array(sorted(set(clients)), np.uint32)
    size = min(len(candidates), max(minimum, math.ceil(round(fraction * len(candidates), 9))))
    order = np.argsort(cohort_keys(run_seed, round_number, candidates), kind="stable")
    return sorted(int(client) for client in candidates[order[:size]])
