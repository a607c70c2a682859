"""A counter of arrived replies that a SuperLink shares with its ServerApp through a file.

A request to the SuperLink for replies queries its database and takes 10 ms of processor time. Both
processes run on one machine. The ServerApp therefore reads the counter, and requests replies only
after the counter has changed.
"""

from contextlib import suppress
from pathlib import Path

ARRIVALS_VARIABLE = "SAMARA_ARRIVALS"
"""Environment variable of a SuperLink and its ServerApp: the path of the counter's file."""


class Arrivals:
    """A counter of arrived parts of replies, kept in a file.

    Args:
        file: path of the file; it is overwritten.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._count = file, 0
        self._write()

    def add(self) -> None:
        """Add one to the counter."""
        self._count += 1
        self._write()

    def _write(self) -> None:
        # after an error, such as a full disk, the ServerApp still requests replies every second
        with suppress(OSError):
            self._file.write_text(str(self._count))


def read_arrivals(file: Path) -> bytes:
    """Return the content of a counter's file; every arrival changes the content."""
    try:
        return file.read_bytes()
    except OSError:
        return b""
