"""The count by which a ServerApp sees that something of a reply has arrived at its SuperLink.

To ask the SuperLink for replies is a request to a database, of 10 ms of processor time. Both
processes are on one machine, so the SuperLink counts in a file, and the ServerApp looks there.
"""

from contextlib import suppress
from pathlib import Path

ARRIVALS_VARIABLE = "SAMARA_ARRIVALS"
"""Environment variable of a SuperLink and its ServerApp, with the path of the file."""


class Arrivals:
    """The count of what has arrived, in a file.

    Args:
        file: its path; it is written anew.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._count = file, 0
        self._write()

    def add(self) -> None:
        """Count one thing more."""
        self._count += 1
        self._write()

    def _write(self) -> None:
        with suppress(OSError):  # a full disk; the ServerApp asks every second anyway
            self._file.write_text(str(self._count))


def read_arrivals(file: Path) -> bytes:
    """Return what is in the file of a count: another value whenever something has arrived."""
    try:
        return file.read_bytes()
    except OSError:
        return b""
