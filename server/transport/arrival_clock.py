"""The clock of a live server, whose waits for replies end when a reply has arrived."""

import time
from math import inf
from pathlib import Path

from samara.server.live.arrivals import read_arrivals
from samara.server.transport.deadline_grid import SystemClock
from samara.shared.polling import LEAST_PAUSE, pause_before_asking

_LONGEST_PAUSE, _LONGEST_WAIT = 0.1, 1.0
"""Seconds between two looks at the count, and those after which replies are asked for anyway.

Flower answers in place of a client that is gone, of which nothing arrives.
"""


class ArrivalClock(SystemClock):
    """A system clock whose waits end once a reply has arrived whole.

    Args:
        file: file of the counter.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._seen = file, read_arrivals(file)

    def wait(self, max_seconds: float, waited: float = inf) -> None:
        """Wait for something to arrive, but no longer than for one second and for max_seconds."""
        now = time.monotonic()
        end = now + min(_LONGEST_WAIT, max_seconds)
        last = self._seen
        while now < end:
            before, last = last, read_arrivals(self._file)
            has_arrived = last != self._seen
            if has_arrived and last == before:  # the parts of a reply come together
                break
            pause = LEAST_PAUSE if has_arrived else pause_before_asking(waited, _LONGEST_PAUSE)
            time.sleep(min(pause, end - now))
            now = time.monotonic()
        self._seen = last
