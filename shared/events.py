"""Event files: one JSON object per line, appended so that each event survives a crash."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shared.errors import SamaraError
from shared.files import write_durably


def append_event(file: Path, event: dict[str, Any]) -> None:
    """Append an event to a file, and return once it is on the disk.

    Raises:
        OSError: if writing fails.
    """
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(event, sort_keys=True) + "\n")
        lines.flush()
        os.fsync(lines.fileno())


def read_events(file: Path) -> list[dict[str, Any]]:
    """Read the events of a file after cutting it to its last whole line; none if it does not exist.

    A last event that lacks nothing but the end of its line is kept.

    Raises:
        SamaraError: if a whole line is no JSON object.
    """
    if not file.exists():
        return []
    data = file.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        whole = data + b"\n" if _is_event(data[len(whole) :]) else whole
        write_durably(file, whole)
    return _parse(file, whole)


def read_whole_events(file: Path) -> list[dict[str, Any]]:
    """Read the events of a file that another process may write; a last half line is left out.

    Raises:
        OSError: if it cannot be read.
        SamaraError: if a whole line is no JSON object.
    """
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return []
    return _parse(file, data[: data.rfind(b"\n") + 1])


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
        self._file, self._at = file, 0

    def skip_existing(self) -> None:
        """Skip the events that the file already holds."""
        for _ in self.read_new():
            pass

    def read_new(self) -> Iterator[dict[str, Any]]:
        """Yield the events that were appended since the last call."""
        try:
            with self._file.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._at:
                    self._at = 0  # a log that was long and is begun anew
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            try:
                item = json.loads(line)
            except ValueError:
                continue
            if isinstance(item, dict):
                yield item
