"""The clock of a live server; it ends a wait as soon as a reply has arrived."""

import time
from math import inf
from pathlib import Path

from samara.server.live.arrivals import read_arrivals
from samara.server.transport.deadline_grid import SystemClock
from samara.shared.network.polling import LEAST_PAUSE, pause_before_asking

_LONGEST_PAUSE, _LONGEST_WAIT = 0.1, 1.0
"""Maximum time between two readings of the counter, and maximum duration of a wait, in seconds.

A wait ends even without an arrival, because the counter omits the error replies that Flower itself
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
            max_seconds: maximum time to wait, in seconds.
            waited: time already spent waiting for replies, in seconds; the longer it is, the less
                often the counter is polled.
        """
        now = time.monotonic()
        end = now + min(_LONGEST_WAIT, max_seconds)
        last = self._seen
        while now < end:
            before = last
            last = read_arrivals(self._file)
            has_arrived = last != self._seen
            if has_arrived and last == before:  # a pause: the reply is complete
                break
            pause = LEAST_PAUSE if has_arrived else pause_before_asking(waited, _LONGEST_PAUSE)
            time.sleep(min(pause, end - now))
            now = time.monotonic()
        self._seen = last
