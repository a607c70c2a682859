"""The log of a device's pauses: start, end, and exceeded limit of each pause.

The trainer writes a line at the beginning and a line at the end of a pause. The file only informs
the owner; it is never sent.
"""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from samara.shared.errors import DeviceError
from samara.shared.storage.kept_file import KeptLog

log = logging.getLogger("samara.device")

PAUSES_FILE = "pauses.jsonl"
_MOST_BYTES = 2**16
"""Size in bytes at which the older half of the file is dropped."""


class Pause(NamedTuple):
    """A pause of the device.

    Attributes:
        begun: start of the pause, in seconds since 1970.
        seconds: duration; None if the end is unknown, for example while the pause lasts.
        reason: the limit that was exceeded.
    """

    begun: float
    seconds: float | None
    reason: str


class PauseLog(KeptLog):
    """The pause log of one client, written by its trainer.

    Args:
        folder: folder of the client.
        clock: function that returns the seconds since 1970.
    """

    name = PAUSES_FILE
    error = DeviceError

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(folder)
        self._clock = clock

    def note(self, reason: str) -> None:
        """Record the start or the end of a pause; a failure to write is logged.

        Args:
            reason: reason of the pause; empty at its end.
        """
        event = {"time": round(self._clock(), 1), "reason": reason}
        try:
            if self.append(json.dumps(event, sort_keys=True).encode()) > _MOST_BYTES:
                lines = self.read_lines()
                self.replace(lines[len(lines) // 2 :])
        except DeviceError as error:
            log.warning("%s", error)


def read_pauses(folder: Path) -> list[Pause]:
    """Return the pauses of a client, oldest first, skipping unreadable lines.

    Args:
        folder: folder of the client.
    """
    try:
        lines = PauseLog(folder).read_lines()
    except DeviceError as error:
        log.warning("%s", error)
        return []
    pauses: list[Pause] = []
    for line in lines:
        try:
            content = json.loads(line)
            moment = float(content["time"])
            reason = str(content["reason"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if reason:
            pauses.append(Pause(moment, None, reason))
        elif pauses and pauses[-1].seconds is None:
            pauses[-1] = pauses[-1]._replace(seconds=max(moment - pauses[-1].begun, 0.0))
    return pauses
