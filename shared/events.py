"""Event files: one JSON object per line, appended so that each event survives a crash.

All readers also read the earlier parts of a file (`samara.shared.event_parts`), before it.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samara.shared.errors import SamaraError
from samara.shared.event_parts import close_long_part, count_parts, read_part
from samara.shared.files import write_durably


def append_event(file: Path, event: dict[str, Any]) -> None:
    """Append an event to a file, and return once it is on the disk.

    Raises:
        OSError: if writing fails.
    """
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(event, sort_keys=True) + "\n")
        lines.flush()
        os.fsync(lines.fileno())


def append_in_parts(file: Path, event: dict[str, Any]) -> None:
    """Append an event to a file that may become long; earlier lines are compressed beside it.

    Raises:
        OSError: if writing fails.
    """
    close_long_part(file)
    append_event(file, event)


def read_events(file: Path) -> list[dict[str, Any]]:
    """Read the events of a file after cutting it to its last whole line; none if it does not exist.

    A last event that lacks nothing but the end of its line is kept.

    Raises:
        SamaraError: if a whole line is no JSON object.
    """
    if file.exists():
        data = file.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            whole = data + b"\n" if _is_event(data[len(whole) :]) else whole
            write_durably(file, whole)
    return read_whole_events(file)


def read_whole_events(file: Path) -> list[dict[str, Any]]:
    """Read the events of a file that another process may write; a last half line is left out.

    Raises:
        OSError: if it cannot be read.
        SamaraError: if a whole line is no JSON object.
    """
    return _parse(file, read_whole_lines(file))


def read_whole_lines(file: Path) -> bytes:
    """Return the lines of a file that another process may write, without a last half line.

    Raises:
        OSError: if it cannot be read.
    """
    return b"".join(EventFollower(file).read_new_lines())


def _parse(file: Path, lines: bytes) -> list[dict[str, Any]]:
    events = []
    for number, line in enumerate(lines.splitlines(), start=1):
        try:
            event = json.loads(line)
            if not isinstance(event, dict):
                raise ValueError("it is not a JSON object")
            events.append(event)
        except ValueError as error:
            raise SamaraError(f"{file}:{number}: damaged: {error}; delete the line") from error
    return events


def _is_event(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


class EventFollower:
    """A reader of the events that are appended to a file; it skips lines that are no JSON."""

    def __init__(self, file: Path) -> None:
        self._file, self._parts_read, self._at = file, 0, 0

    def skip_existing(self) -> None:
        """Skip the events that the file already holds."""
        for _ in self.read_new():
            pass

    def read_new(self) -> Iterator[dict[str, Any]]:
        """Yield the events that were appended since the last call."""
        for lines in self.read_new_lines():
            for line in lines.splitlines():
                try:
                    item = json.loads(line)
                except ValueError:
                    continue
                if isinstance(item, dict):
                    yield item

    def read_new_lines(self) -> Iterator[bytes]:
        """Yield the whole lines that were appended since the last call, part by part.

        Raises:
            OSError: if a file cannot be read.
        """
        while (parts := count_parts(self._file)) > self._parts_read:
            begun = self._at
            self._parts_read, self._at = self._parts_read + 1, 0
            yield read_part(self._file, self._parts_read)[begun:]
        begun, data = self._read_file()
        if count_parts(self._file) > parts:  # what was read may be of a later part
            yield from self.read_new_lines()
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._at = begun + len(whole)
        yield whole

    def _read_file(self) -> tuple[int, bytes]:
        """Return where the bytes that are new in the file itself begin, and these."""
        try:
            with self._file.open("rb") as file:
                is_new = file.seek(0, os.SEEK_END) < self._at  # a log that was long is begun anew
                begun = file.seek(0 if is_new else self._at)
                return begun, file.read()
        except FileNotFoundError:
            return self._at, b""
