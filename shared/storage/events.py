"""Event files: one JSON object per line, appended so that each event survives a crash.

The lines of a long file are moved to a compressed file beside it, called a part. Readers read all
parts before the file itself. A run of many months has `metrics.00001.jsonl.gz` and so on beside
`metrics.jsonl`.
"""

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from samara.shared.errors import SamaraError
from samara.shared.storage.files import sync_folder, write_durably

PART_BYTES = 4 * 2**20
"""Size in bytes at which a file's lines are moved to a compressed part."""
_PART = re.compile(r"(.+)\.\d{5,}(\.jsonl)(?:\.gz)?")


def append_event(file: Path, event: dict[str, Any]) -> None:
    """Append an event durably to a file.

    Raises:
        OSError: if writing fails.
    """
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(event, sort_keys=True) + "\n")
        lines.flush()
        os.fsync(lines.fileno())


def append_in_parts(file: Path, event: dict[str, Any]) -> None:
    """Append an event to a file, and compress the file's lines into a part when it is long.

    Raises:
        OSError: if writing fails.
    """
    close_long_part(file)
    append_event(file, event)


def read_events(file: Path) -> list[dict[str, Any]]:
    """Read all events of a file, and cut off an incomplete last line; no file means no events.

    A complete last event that lacks only its newline is kept.

    Raises:
        SamaraError: if a whole line is not a JSON object.
    """
    if file.exists():
        data = file.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            whole = data + b"\n" if _is_event(data[len(whole) :]) else whole
            write_durably(file, whole)
    return read_whole_events(file)


def read_whole_events(file: Path) -> list[dict[str, Any]]:
    """Read the whole events of a file that another process may be writing.

    Raises:
        OSError: if the file cannot be read.
        SamaraError: if a whole line is not a JSON object.
    """
    return _parse(file, read_whole_lines(file))


def read_whole_lines(file: Path) -> bytes:
    """Return the whole lines of a file that another process may be writing.

    Raises:
        OSError: if the file cannot be read.
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
    """A reader of events appended to a file; it skips lines that are not JSON."""

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
        """Yield the whole lines that were appended since the last call, one item per part.

        Raises:
            OSError: if a file cannot be read.
        """
        while (parts := count_parts(self._file)) > self._parts_read:
            begun = self._at
            self._parts_read, self._at = self._parts_read + 1, 0
            yield read_part(self._file, self._parts_read)[begun:]
        begun, data = self._read_file()
        if count_parts(self._file) > parts:  # the bytes may have moved to this part
            yield from self.read_new_lines()
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._at = begun + len(whole)
        yield whole

    def _read_file(self) -> tuple[int, bytes]:
        """Return the position of the unread bytes in the uncompressed file, and these bytes."""
        try:
            with self._file.open("rb") as file:
                is_new = file.seek(0, os.SEEK_END) < self._at  # a long log was restarted
                begun = file.seek(0 if is_new else self._at)
                return begun, file.read()
        except FileNotFoundError:
            return self._at, b""


def close_long_part(file: Path) -> None:
    """If an event file is long, move its lines to a new compressed part.

    If the process is killed meanwhile, readers still find all lines, and the next call finishes the
    compression.

    Args:
        file: event file with whole lines only; no other process may write to it.

    Raises:
        OSError: if a file cannot be written.
    """
    if file.exists() and file.stat().st_size >= PART_BYTES:
        os.replace(file, _part(file, count_parts(file) + 1))
        file.touch()
        sync_folder(file.parent)
    for plain in [path for path in _parts(file) if path.suffix != ".gz"]:
        write_durably(plain.with_name(f"{plain.name}.gz"), gzip.compress(plain.read_bytes()))
        plain.unlink()


def count_parts(file: Path) -> int:
    """Return the number of compressed parts of an event file."""
    return len({path.name.removesuffix(".gz") for path in _parts(file)})


def read_part(file: Path, number: int) -> bytes:
    """Return the lines of a part.

    Args:
        file: event file.
        number: number of the part, from 1 on.

    Raises:
        OSError: if the part cannot be read.
        SamaraError: if the part is damaged.
    """
    plain = _part(file, number)
    with suppress(FileNotFoundError):  # compressed, perhaps only just now
        return plain.read_bytes()
    compressed = plain.with_name(f"{plain.name}.gz")
    try:
        lines = gzip.decompress(compressed.read_bytes())
        if not lines:
            raise EOFError("no part is empty")
        return lines
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SamaraError(f"{compressed}: damaged; restore it from a backup") from error


def is_part(path: Path) -> bool:
    """Return whether a file's name is that of an event file's part."""
    return _PART.fullmatch(path.name) is not None


def _parts(file: Path) -> list[Path]:
    """Return the files of an event file's parts: one each, or two while a part is compressed."""
    return [path for path in file.parent.glob(f"{file.stem}.*") if _is_part_of(path, file)]


def _is_part_of(path: Path, file: Path) -> bool:
    found = _PART.fullmatch(path.name)
    return found is not None and found[1] + found[2] == file.name


def _part(file: Path, number: int) -> Path:
    return file.with_name(f"{file.stem}.{number:05}{file.suffix}")
