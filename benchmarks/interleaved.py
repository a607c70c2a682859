"""Interleaved measurements, whose ratios other load on the machine hardly changes."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeVar

Name = TypeVar("Name")
Work = Callable[[], object]


def interleaved(
    works: Mapping[Name, Work], repetitions: int, seconds_of: Callable[[Work], float]
) -> dict[Name, list[float]]:
    """Return the seconds of every work, measured in turn, repetition by repetition."""
    seconds: dict[Name, list[float]] = {name: [] for name in works}
    for _ in range(repetitions):
        for name, work in works.items():
            seconds[name].append(seconds_of(work))
    return seconds


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of the ratios within a repetition."""
    return median(one / other for one, other in zip(above, below, strict=True))
