"""The watch of a device's sensors while it works: why to pause, and the energy so far."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from samara.devices.jetson.telemetry import Reading
from samara.devices.live.limits import DeviceLimits

log = logging.getLogger("samara.device")

SECONDS_BETWEEN = 1.0
"""Seconds between two readings."""
STALE_SECONDS = 30.0
"""Age of a reading at which the sensors count as not readable."""


class SensorWatch:
    """Reads the sensors again and again, so that asking for the reason of a pause takes no time.

    Args:
        read: function that reads the sensors.
        limits: limits of the device's owner.
        clock: function that returns monotonic seconds.
        now: function that returns the local time.
        note: function that is told the reason when a pause begins, and "" when it ends.
    """

    def __init__(
        self,
        read: Callable[[], Reading],
        limits: DeviceLimits,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = datetime.now,
        note: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._read, self._limits, self._clock, self._now = read, limits, clock, now
        self._note = note
        self._reason, self._time = "", clock()
        self._watts: float | None = None
        self._joules: float | None = None

    @property
    def joules(self) -> float | None:
        """The energy since the first reading; None if no sensor measures power.

        The power of a reading counts for the time until the next one.
        """
        if self._joules is None or self._watts is None:
            return self._joules
        return self._joules + self._watts * (self._clock() - self._time)

    def pause_reason(self) -> str:
        """Return the reason for pausing now; empty if there is none."""
        if self._limits.limits_anything and self._clock() - self._time > STALE_SECONDS:
            return "the sensors do not answer"
        return self._reason

    def look(self) -> None:
        """Read the sensors once."""
        reading = self._read()
        joules = self.joules
        self._time = self._clock()
        self._watts = reading.watts
        self._joules = 0.0 if joules is None and reading.watts is not None else joules
        reason = self._limits.pause_reason(reading, self._now().time())
        if bool(reason) != bool(self._reason):
            log.info("paused: %s", reason) if reason else log.info("no longer paused")
            self._note(reason)
        self._reason = reason

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look before and, if that is of any use, during a block."""
        self.look()
        if not self._limits.limits_anything and self._watts is None:
            yield
            return
        end = threading.Event()

        def watch() -> None:
            while not end.wait(SECONDS_BETWEEN):
                try:
                    self.look()
                except Exception:  # a sensor's driver may fail in any way; its reading gets stale
                    log.exception("the sensors cannot be read")

        thread = threading.Thread(target=watch, name="sensors", daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
