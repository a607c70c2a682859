"""Groupings of a step's rows into forward passes over the frozen weights (P-RGE, section 3).

A step scores B examples under 2·q perturbations: both signs of q queries. The groupings are:

- `sequential`: 2·q passes of B rows
- `inner`: q passes, each with both signs of a query
- `outer`: 2 passes, each with all queries of a sign
- `both`: one pass of 2·q·B rows

E = q·B is the effective batch size of P-RGE: steps with the same E cost the same. A pass can be
divided further into micro-batches of examples. All groupings give the same projected gradients up
to rounding. The fastest grouping depends on the device and the shapes.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from samara.shared.model.perturbations import PerturbedAdapters

Grouping = Literal["sequential", "inner", "outer", "both"]
GROUPINGS: tuple[Grouping, ...] = ("sequential", "inner", "outer", "both")

_RETIMING_FACTOR = 1.25
"""A candidate is timed again if its time is within this factor of the shortest time."""
_RETIMINGS = 3


@dataclass(frozen=True)
class Schedule:
    """The division of a step into forward passes.

    Attributes:
        grouping: rule that decides which perturbations share a pass.
        micro_batch: maximum number of examples in a pass; 0 for no limit.
    """

    grouping: Grouping = "both"
    micro_batch: int = 0


def split_by_grouping(
    perturbations: PerturbedAdapters, grouping: Grouping
) -> Iterator[tuple[NDArray[np.int64], PerturbedAdapters]]:
    """Split a step's perturbations into groups, each of which shares a pass.

    Args:
        perturbations: both signs of q directions, or a single perturbation.
        grouping: rule that decides which perturbations share a pass.

    Yields:
        Indices of a pass's perturbations, int64, and the perturbations themselves.
    """
    if grouping == "both" or not perturbations.queries:
        yield np.arange(perturbations.count), perturbations
        return
    queries = perturbations.queries
    index = np.arange(perturbations.count).reshape(-1, queries)
    for query in [slice(None)] if grouping == "outer" else map(_single, range(queries)):
        for sign in [slice(None)] if grouping == "inner" else map(_single, range(len(index))):
            yield index[sign, query].ravel(), perturbations.select(sign, query)


def _single(index: int) -> slice:
    return slice(index, index + 1)


def perturbations_per_pass(grouping: Grouping, queries: int) -> int:
    """Return the number of perturbations that share a pass: 1, 2, q or 2·q."""
    return {"sequential": 1, "inner": 2, "outer": queries, "both": 2 * queries}[grouping]


def distinct_groupings(queries: int) -> tuple[Grouping, ...]:
    """Return the groupings that differ for a number of queries.

    With one query, `outer` equals `sequential`, and `both` equals `inner`.
    """
    return GROUPINGS if queries > 1 else ("sequential", "inner")


def find_largest_micro_batch(peak_bytes: Callable[[int], int], budget: int, most: int) -> int:
    """Return the largest micro-batch whose measured pass fits into a byte budget.

    Memory grows at most in proportion to the examples in a pass, so a measured pass bounds larger
    passes. Only the first measured pass, with one example, may exceed the budget.

    Args:
        peak_bytes: function that measures the memory of a pass with a given number of examples.
        budget: maximum memory of a pass, in bytes.
        most: number of examples in a step.

    Returns:
        The number of examples; 0 if not even one example fits.
    """
    fitting, candidate = 0, 1
    while (peak := peak_bytes(candidate)) <= budget:
        fitting = candidate
        candidate = min(most, fitting * budget // max(peak, 1))
        if candidate <= fitting:
            break
    return fitting


def candidate_micro_batches(largest: int) -> Iterator[int]:
    """Yield the micro-batch sizes to time: the largest, its half, and so on down to one example."""
    while largest > 0:
        yield largest
        largest = 0 if largest == 1 else -(-largest // 2)


def choose_fastest(
    candidates: Iterable[Schedule], seconds: Callable[[Schedule], float]
) -> tuple[Schedule, dict[Schedule, float]]:
    """Choose the fastest schedule; schedules of similar speed are timed repeatedly, in turn.

    Args:
        candidates: schedules to time, at least one.
        seconds: function that times one step.

    Returns:
        The fastest schedule, and the shortest time of each candidate.
    """
    times = {candidate: seconds(candidate) for candidate in candidates}
    limit = min(times.values()) * _RETIMING_FACTOR
    close = [candidate for candidate, time in times.items() if time <= limit]
    for _ in range(_RETIMINGS if len(close) > 1 else 0):
        for candidate in close:
            times[candidate] = min(times[candidate], seconds(candidate))
    return min(times, key=times.__getitem__), times
