"""A record of the times in which accelerator, host and link were busy."""

import threading
from dataclasses import dataclass

ACCELERATOR, TO_HOST, HOST, TO_DEVICE = "accelerator", "to the host", "host", "to the device"
LANES = (ACCELERATOR, TO_HOST, HOST, TO_DEVICE)
"""Names of a timeline's lanes, in the order of a layer's way from gradient to update."""


@dataclass(frozen=True)
class Interval:
    """A time interval in which a lane was busy.

    Attributes:
        lane: one of `LANES`.
        work: kind of the work: forward, backward, apply, update, or a transfer.
        layer: number of the layer.
        start: seconds on the clock of the schedule.
        end: seconds on the same clock.
    """

    lane: str
    work: str
    layer: int
    start: float
    end: float


class Timeline:
    """Intervals recorded by several threads, in the order of their ends.

    Attributes:
        intervals: intervals recorded so far.
    """

    def __init__(self) -> None:
        self.intervals: list[Interval] = []
        self._lock = threading.Lock()

    def record(self, lane: str, work: str, layer: int, start: float, end: float) -> None:
        """Add an interval."""
        with self._lock:
            self.intervals.append(Interval(lane, work, layer, start, end))

    def busy_seconds(self, lane: str) -> float:
        """Return the number of seconds in which a lane was busy."""
        with self._lock:
            return sum(each.end - each.start for each in self.intervals if each.lane == lane)
