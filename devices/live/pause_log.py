"""The log of a device's pauses: when its limits were exceeded, which, and until when.

The trainer writes a line when a pause begins and one when it ends. The file is its owner's and is
never sent; nothing depends on it.
"""

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from samara.shared.errors import DeviceError
from samara.shared.kept_file import KeptLog

log = logging.getLogger("samara.device")

PAUSES_FILE = "pauses.jsonl"
_MOST_BYTES = 2**16
"""Size of the file at which its older half is left out."""


class Pause(NamedTuple):
    """A pause of the device.

    Attributes:
        begun: seconds since 1970.
        seconds: how long it lasted; None if its end is not known, as while it lasts.
        reason: the limit that was exceeded.
    """

    begun: float
    seconds: float | None
    reason: str


class PauseLog(KeptLog):
    """The log of one client, which its trainer writes.

    Args:
        folder: folder of the client.
        clock: function that gives the seconds since 1970.
    """

    name = PAUSES_FILE
    error = DeviceError

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(folder)
        self._clock = clock

    def note(self, reason: str) -> None:
        """Note that a pause has begun, or ended; what cannot be written is logged.

        Args:
            reason: reason of the pause; empty if there is none any more.
        """
        event = {"time": round(self._clock(), 1), "reason": reason}
        try:
            if self.append(json.dumps(event, sort_keys=True).encode()) > _MOST_BYTES:
                lines = self.read_lines()
                self.replace(lines[len(lines) // 2 :])
        except DeviceError as error:
            log.warning("%s", error)


def read_pauses(folder: Path) -> list[Pause]:
    """Return the pauses of a client, oldest first; lines that cannot be read are left out.

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
            moment, reason = float(content["time"]), str(content["reason"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if reason:
            pauses.append(Pause(moment, None, reason))
        elif pauses and pauses[-1].seconds is None:
            pauses[-1] = pauses[-1]._replace(seconds=max(moment - pauses[-1].begun, 0.0))
    return pauses
