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

from samara.shared.events import append_event
from samara.shared.files import write_durably

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


class PauseLog:
    """The log of one client, which its trainer writes.

    Args:
        folder: folder of the client.
        clock: function that gives the seconds since 1970.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._file, self._clock = folder / PAUSES_FILE, clock

    def note(self, reason: str) -> None:
        """Note that a pause has begun, or ended; what cannot be written is logged.

        Args:
            reason: reason of the pause; empty if there is none any more.
        """
        try:
            append_event(self._file, {"time": round(self._clock(), 1), "reason": reason})
            if self._file.stat().st_size > _MOST_BYTES:
                lines = self._file.read_bytes().splitlines(keepends=True)
                write_durably(self._file, b"".join(lines[len(lines) // 2 :]))
        except OSError as error:
            log.warning("%s: cannot be written: %s", self._file, error.strerror)


def read_pauses(folder: Path) -> list[Pause]:
    """Return the pauses of a client, oldest first; lines that cannot be read are left out.

    Args:
        folder: folder of the client.
    """
    try:
        lines = (folder / PAUSES_FILE).read_bytes().splitlines()
    except OSError:
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
