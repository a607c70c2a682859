"""The clock of a live server, whose waits end when a reply has arrived."""

import time
from math import inf
from pathlib import Path

from samara.server.live.arrivals import read_arrivals
from samara.server.transport.deadline_grid import SystemClock
from samara.shared.network.polling import LEAST_PAUSE, pause_before_asking

_LONGEST_PAUSE, _LONGEST_WAIT = 0.1, 1.0
"""Most seconds between two readings of the counter, and most seconds of a wait.

A wait also ends without an arrival, because the counter omits the error replies that Flower itself
creates for lost clients.
"""


class ArrivalClock(SystemClock):
    """A system clock whose waits end once a complete reply has arrived.

    Args:
        file: path of the file in which the SuperLink counts arrived replies.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._seen = file, read_arrivals(file)

    def wait(self, max_seconds: float, waited: float = inf) -> None:
        """Wait until a reply arrives, but at most one second and at most `max_seconds`.

        Args:
            max_seconds: most seconds to wait.
            waited: seconds already spent waiting for replies; longer waits poll less often.
        """
        now = time.monotonic()
        end = now + min(_LONGEST_WAIT, max_seconds)
        last = self._seen
        while now < end:
            before = last
            last = read_arrivals(self._file)
            has_arrived = last != self._seen
            if has_arrived and last == before:  # the parts of a reply arrive together
                break
            pause = LEAST_PAUSE if has_arrived else pause_before_asking(waited, _LONGEST_PAUSE)
            time.sleep(min(pause, end - now))
            now = time.monotonic()
        self._seen = last
