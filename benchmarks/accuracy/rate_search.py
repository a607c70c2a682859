"""The search of a learning rate that all methods of a comparison share."""

import math
from collections.abc import Callable

FACTOR = math.sqrt(10)
MOST_RATES = 6


def search_rate(centre: float, loss: Callable[[float], float]) -> float:
    """Return the learning rate with the lowest loss, from a centre by factors of √10.

    The centre and the rate above it are tried, and then neighbours of the best one until both of
    its neighbours are worse, six rates at most.

    Args:
        centre: rate that the search begins with.
        loss: function that trains with a rate and returns the loss on validation data.
    """
    losses = {power: loss(centre * FACTOR**power) for power in (0, 1)}
    while len(losses) < MOST_RATES:
        best = min(losses, key=lambda power: losses[power])
        missing = [power for power in (best - 1, best + 1) if power not in losses]
        if not missing:
            break
        losses[missing[0]] = loss(centre * FACTOR ** missing[0])
    best = min(losses, key=lambda power: losses[power])
    return centre * FACTOR**best
