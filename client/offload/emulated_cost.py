"""The seconds that training on an emulated accelerator has taken, by kind of work."""

from collections import defaultdict
from typing import Any

from samara.client.offload.accelerator import EmulatedAccelerator


class EmulatedCost:
    """The seconds of this process's training so far, in stretches between which it stood still.

    Args:
        accelerator: accelerator whose timeline is read.
    """

    def __init__(self, accelerator: EmulatedAccelerator) -> None:
        self._accelerator = accelerator
        self._seconds = 0.0
        self._busy: defaultdict[str, float] = defaultdict(float)

    def count(self) -> None:
        """Add what has been recorded since the last call; all updates must be done."""
        recorded = self._accelerator.timeline.intervals
        for each in recorded:
            self._busy[each.work] += each.end - each.start
        if recorded:
            begin = min(each.start for each in recorded)
            self._seconds += max(each.end for each in recorded) - begin
        recorded.clear()

    def skip(self) -> None:
        """Leave out what has been recorded since the last call, which was no training."""
        self._accelerator.timeline.intervals.clear()

    def as_json(self) -> dict[str, Any]:
        """Return seconds, those of each stage, and the peaks of counted bytes on both sides."""
        return {
            "seconds": round(self._seconds, 6),
            "stage_seconds": {work: round(self._busy[work], 6) for work in sorted(self._busy)},
            "peak_memory_bytes": self._accelerator.memory.peak,
            "host_peak_memory_bytes": self._accelerator.host_memory.peak,
        }
