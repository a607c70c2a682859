"""Emulated training time on an accelerator, by kind of work."""

from collections import defaultdict
from typing import Any

from samara.client.offload.accelerator import EmulatedAccelerator


class EmulatedCost:
    """The emulated training time of this process, in seconds.

    Time outside of training, such as evaluations between steps, does not count.

    Args:
        accelerator: accelerator with the timeline to read.
    """

    def __init__(self, accelerator: EmulatedAccelerator) -> None:
        self._accelerator = accelerator
        self._seconds = 0.0
        self._busy: defaultdict[str, float] = defaultdict(float)

    def count(self) -> None:
        """Add the intervals recorded since the last call; all updates must be finished."""
        recorded = self._accelerator.timeline.intervals
        for each in recorded:
            self._busy[each.work] += each.end - each.start
        if recorded:
            begin = min(each.start for each in recorded)
            self._seconds += max(each.end for each in recorded) - begin
        recorded.clear()

    def skip(self) -> None:
        """Discard the intervals recorded since the last call; call this after other work."""
        self._accelerator.timeline.intervals.clear()

    def as_json(self) -> dict[str, Any]:
        """Return the total seconds, the seconds of each stage, and the peak memory in bytes.

        The peaks of accelerator and host memory are separate entries.
        """
        return {
            "seconds": round(self._seconds, 6),
            "stage_seconds": {work: round(self._busy[work], 6) for work in sorted(self._busy)},
            "peak_memory_bytes": self._accelerator.memory.peak,
            "host_peak_memory_bytes": self._accelerator.host_memory.peak,
        }
