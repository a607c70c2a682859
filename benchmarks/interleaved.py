"""Interleaved measurements, whose ratios hardly depend on other load on the machine."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeVar

Name = TypeVar("Name")
Work = Callable[[], object]


def interleaved(
    works: Mapping[Name, Work], repetitions: int, seconds_of: Callable[[Work], float]
) -> dict[Name, list[float]]:
    """Measure all works in turn, repetition by repetition, and return their seconds."""
    seconds: dict[Name, list[float]] = {name: [] for name in works}
    for _ in range(repetitions):
        for name, work in works.items():
            seconds[name].append(seconds_of(work))
    return seconds


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median over repetitions of the ratio of two measurements."""
    return median(one / other for one, other in zip(above, below, strict=True))
