"""A counter of arrived replies, which a SuperLink shares with its ServerApp through a file.

Asking the SuperLink for replies is a database request of 10 ms of processor time. Both processes
run on one machine, so the ServerApp reads the counter and asks when it has changed.
"""

from contextlib import suppress
from pathlib import Path

ARRIVALS_VARIABLE = "SAMARA_ARRIVALS"
"""Environment variable of a SuperLink and its ServerApp, with the path of the file."""


class Arrivals:
    """A counter of arrivals, kept in a file.

    Args:
        file: its path; it is written anew.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._count = file, 0
        self._write()

    def add(self) -> None:
        """Add one to the counter."""
        self._count += 1
        self._write()

    def _write(self) -> None:
        with suppress(OSError):  # a full disk; the ServerApp asks every second anyway
            self._file.write_text(str(self._count))


def read_arrivals(file: Path) -> bytes:
    """Return the content of a counter's file, which changes with every arrival."""
    try:
        return file.read_bytes()
    except OSError:
        return b""
