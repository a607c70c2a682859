"""How the rows of a step are grouped into passes over the frozen weights (P-RGE, section 3).

A step scores B examples under 2·q points. One after the other that is 2·q passes of B rows. The
inner loop puts both signs of a query into one pass, the outer loop all queries of a sign, and both
together everything: one pass of 2·q·B rows. E = q·B is what P-RGE calls the effective batch size:
at the same E a step costs the same. Each pass can be cut further into micro-batches of examples.
All groupings give the same projected gradients but for rounding; which one is fastest depends on
the device and the shapes.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shared.model.lora_fa import PerturbedAdapters

Grouping = Literal["sequential", "inner", "outer", "both"]
GROUPINGS: tuple[Grouping, ...] = ("sequential", "inner", "outer", "both")

_WORTH_A_SECOND_LOOK = 1.25
_LOOKS = 3


@dataclass(frozen=True)
class Schedule:
    """How a step is executed.

    Attributes:
        grouping: which points share a pass.
        micro_batch: at most so many examples in a pass; 0 is all of the step.
    """

    grouping: Grouping = "both"
    micro_batch: int = 0


def split_by_grouping(
    perturbations: PerturbedAdapters, grouping: Grouping
) -> Iterator[tuple[NDArray[np.int64], PerturbedAdapters]]:
    """Cut the points of a step into those that share a pass.

    Args:
        points: both signs of q directions, or a single point.
        grouping: how.

    Yields:
        Indices into the points, and the points at them.
    """
    if grouping == "both" or not perturbations.queries:
        yield np.arange(perturbations.count), perturbations
        return
    queries = perturbations.queries
    index = np.arange(perturbations.count).reshape(-1, queries)
    for query in [slice(None)] if grouping == "outer" else map(_only, range(queries)):
        for sign in [slice(None)] if grouping == "inner" else map(_only, range(len(index))):
            yield index[sign, query].ravel(), perturbations.select(sign, query)


def _only(index: int) -> slice:
    return slice(index, index + 1)


def perturbations_per_pass(grouping: Grouping, queries: int) -> int:
    """How many points share a pass: 1, 2, q or 2·q."""
    return {"sequential": 1, "inner": 2, "outer": queries, "both": 2 * queries}[grouping]


def distinct_groupings(queries: int) -> tuple[Grouping, ...]:
    """Groupings that differ: with one query there is no outer loop."""
    return GROUPINGS if queries > 1 else ("sequential", "inner")


def find_largest_micro_batch(peak_bytes: Callable[[int], int], budget: int, most: int) -> int:
    """The largest micro-batch that is known to stay inside a byte budget.

    Memory grows at most in proportion to the examples in a pass, so a measured pass bounds larger
    ones; nothing that may be over the budget is ever tried, but for the first single example.

    Args:
        peak_bytes: measures a pass of so many examples.
        budget: bytes.
        most: examples of a step.

    Returns:
        0 if not even one example fits.
    """
    fitting, tried = 0, 1
    while (peak := peak_bytes(tried)) <= budget:
        fitting = tried
        tried = min(most, fitting * budget // max(peak, 1))
        if tried <= fitting:
            break
    return fitting


def candidate_micro_batches(largest: int) -> Iterator[int]:
    """Candidates: the largest, and its halves down to single examples."""
    while largest > 0:
        yield largest
        largest = 0 if largest == 1 else -(-largest // 2)


def choose_fastest(
    candidates: Iterable[Schedule], seconds: Callable[[Schedule], float]
) -> tuple[Schedule, dict[Schedule, float]]:
    """The candidate with the shortest time; those that come close are timed again, in turn.

    Args:
        candidates: at least one.
        seconds: times one step.

    Returns:
        The fastest, and the shortest time of each.
    """
    times = {candidate: seconds(candidate) for candidate in candidates}
    limit = min(times.values()) * _WORTH_A_SECOND_LOOK
    close = [candidate for candidate, time in times.items() if time <= limit]
    for _ in range(_LOOKS if len(close) > 1 else 0):
        for candidate in close:
            times[candidate] = min(times[candidate], seconds(candidate))
    return min(times, key=times.__getitem__), times
