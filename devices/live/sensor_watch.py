"""Monitoring of a device's sensors during work: the reason to pause, and the energy so far."""

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
"""Age in seconds at which a reading is stale and the sensors count as unreadable."""


class SensorWatch:
    """Reads the sensors repeatedly, so that `pause_reason` returns without a delay.

    Args:
        read: function that reads the sensors.
        limits: limits of the device's owner.
        clock: function that returns monotonic seconds.
        now: function that returns the local time.
        note: function that receives the reason when a pause begins, and "" when the pause ends.
    """

    def __init__(
        self,
        read: Callable[[], Reading],
        limits: DeviceLimits,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = datetime.now,
        note: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._read = read
        self._limits = limits
        self._clock = clock
        self._now = now
        self._note = note
        self._reason = ""
        self._time = clock()
        self._watts: float | None = None
        self._joules: float | None = None

    @property
    def joules(self) -> float | None:
        """The energy in joules since the first reading; None if no sensor measures power.

        The power is assumed to be constant between two readings.
        """
        if self._joules is None or self._watts is None:
            return self._joules
        return self._joules + self._watts * (self._clock() - self._time)

    def pause_reason(self) -> str:
        """Return the reason to pause now; empty if there is none."""
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
            log.info("paused: %s", reason) if reason else log.info("the pause has ended")
            self._note(reason)
        self._reason = reason

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Read the sensors before a block and, if they are needed, repeatedly during it."""
        self.look()
        if not self._limits.limits_anything and self._watts is None:
            yield
            return
        end = threading.Event()

        def watch() -> None:
            while not end.wait(SECONDS_BETWEEN):
                try:
                    self.look()
                # a sensor's driver may fail in any way; its reading becomes stale
                except Exception:
                    log.exception("the sensors cannot be read")

        thread = threading.Thread(target=watch, name="sensors", daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
