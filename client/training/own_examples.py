"""Learned examples: the examples that a client's owner has taught it, in the client's folder.

The file has one JSON object per line. A line is on the disk before the program confirms it. Several
processes may add and delete lines; a lock file admits one process at a time. Only the owner may
read the file, and the file never leaves the device.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from samara.shared.errors import DataError, TaskError, TrainerError
from samara.shared.storage.files import make_folder, sync_folder, write_durably
from samara.shared.tasks.kinds import Task
from samara.shared.tasks.named_labels import label_value, only_text_field
from samara.shared.tasks.rows import Row, read_rows

OWN_EXAMPLES_FILE = "examples.jsonl"
MAX_ROW_BYTES = 2**20
"""Maximum size of a row, in bytes."""
_LOCK_FILE = "examples.lock"
_ID_DIGITS = 12
_OWNER_ONLY = 0o600


@dataclass(frozen=True)
class OwnExample:
    """A line of the file of learned examples.

    Attributes:
        id: 12 hexadecimal digits, derived from the row's content without its label. A text that is
            taught again with another label has the same id.
        time: time of teaching by this device's clock, seconds since 1970.
        row: a row of data, with the fields that the task reads.
    """

    id: str
    time: float
    row: Mapping[str, Any]

    def rows(self, task: Task) -> list[Row]:
        """Return the examples that a task reads from the row.

        Raises:
            DataError: if the task cannot read the row.
        """
        return [row._replace(time=self.time) for row in read_rows(self.row, task)]


def row_of_text(task: Task, text: str | Mapping[str, str], label: str) -> dict[str, str]:
    """Return a row with a text and its label.

    Args:
        task: task that reads the row.
        text: the text, or the fields of a row without its label.
        label: the label's value in the data, or its label word.

    Raises:
        DataError: if the task does not have the label, or reads more than one text field.
    """
    fields = {only_text_field(task): text} if isinstance(text, str) else dict(text)
    try:
        return fields | {task.label_names[0]: label_value(task, label)}
    except TaskError as error:
        raise DataError(str(error)) from error


class OwnExamples:
    """The file with one client's learned examples.

    Args:
        folder: folder of the client; created if missing.
        clock: function that returns the seconds since 1970.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.file, self._clock = folder / OWN_EXAMPLES_FILE, clock

    def read(self) -> tuple[list[OwnExample], list[str]]:
        """Return the examples, oldest first, and an error message for each damaged line.

        A last line that is still being written is left out.

        Raises:
            TrainerError: if the file cannot be read.
        """
        examples, problems = [], []
        for number, line in enumerate(self._lines(), 1):
            if (example := _read_line(line)) is not None:
                examples.append(example)
            else:
                problems.append(f"{self.file}:{number}: is damaged; delete the line")
        return examples, problems

    def learn(self, rows: Iterable[Mapping[str, Any]], task: Task) -> list[OwnExample]:
        """Add rows durably, and return their examples.

        Args:
            rows: rows of data.
            task: task that reads the rows.

        Raises:
            DataError: if the task cannot read a row. The message names all such rows, and no row is
                added.
            TrainerError: if the file cannot be written; no row is added.
        """
        now, examples, problems = self._clock(), [], []
        for number, row in enumerate(rows, 1):
            try:
                examples.append(OwnExample(_id_of(row, task), now, dict(row)))
            except DataError as error:
                problems.append(f"row {number}: {error}")
        if problems:
            raise DataError("\n".join([*problems, "nothing was learned; correct these rows"]))
        if examples:
            self._append("".join(f"{json.dumps(asdict(one))}\n" for one in examples).encode())
        return examples

    def delete(self, ids: Collection[str] | None) -> list[OwnExample]:
        """Delete the examples with these ids, and return them; None deletes all examples.

        The examples are no longer in the file when the method returns.

        Raises:
            DataError: if no example has one of the ids.
            TrainerError: if the file cannot be read or written.
        """
        with self._locked():
            known = {one.id for one in self.read()[0]}
            if unknown := sorted(set(ids or ()) - known):
                raise DataError(f"{self.file}: no example has the id {', '.join(unknown)}")
            if ids is None:
                return self._rewrite(lambda one: False)
            return self._rewrite(lambda one: one is None or one.id not in ids)

    def expire(self, expired: Collection[OwnExample]) -> None:
        """Delete examples that the retention settings no longer allow.

        Raises:
            TrainerError: if the file cannot be read or written.
        """
        lines = {(one.id, one.time) for one in expired}
        with self._locked():
            self._rewrite(lambda one: one is None or (one.id, one.time) not in lines)

    def _rewrite(self, keep: Callable[[OwnExample | None], bool]) -> list[OwnExample]:
        """Write the file without some examples, and return those examples.

        Args:
            keep: function that returns whether to keep an example; it gets None for a damaged line.
        """
        lines = [(line, _read_line(line)) for line in self._lines()]
        kept = [line for line, example in lines if keep(example)]
        if len(kept) < len(lines):
            try:
                write_durably(self.file, *(line + b"\n" for line in kept))
                self.file.chmod(_OWNER_ONLY)
            except OSError as error:
                raise self._error("written", error) from error
        return [example for _, example in lines if example is not None and not keep(example)]

    def _lines(self) -> list[bytes]:
        """Return the complete lines of the file."""
        try:
            return self.file.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._error("read", error) from error

    def _append(self, lines: bytes) -> None:
        with self._locked():
            try:
                is_new = not self.file.exists()
                self.file.touch(_OWNER_ONLY)
                with self.file.open("r+b", buffering=0) as file:
                    # An incomplete line is from a killed process, which has not confirmed it.
                    end = file.read().rfind(b"\n") + 1
                    file.truncate(end)
                    file.seek(end)
                    try:
                        while lines:
                            lines = lines[file.write(lines) :]
                        os.fsync(file.fileno())
                    except OSError:
                        file.truncate(end)
                        raise
                if is_new:
                    sync_folder(self.file.parent)
            except OSError as error:
                raise self._error("written", error) from error

    def _locked(self) -> FileLock:
        try:
            make_folder(self.file.parent)
            return FileLock(self.file.with_name(_LOCK_FILE), mode=0o600)
        except OSError as error:
            raise self._error("locked", error) from error

    def _error(self, what: str, error: OSError) -> TrainerError:
        return TrainerError(
            f"{self.file}: cannot be {what}: {error.strerror}; check its permissions and the disk"
        )


def parse_rows(lines: Iterable[bytes]) -> list[Mapping[str, Any]]:
    """Parse rows from JSON lines.

    Raises:
        DataError: if a line is not a JSON object or is too long. The message names all such lines.
    """
    rows: list[Mapping[str, Any]] = []
    problems = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line) if len(line) <= MAX_ROW_BYTES else None
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            problems.append(
                f"line {number}: is not a JSON object of at most {MAX_ROW_BYTES} bytes, such as "
                '{"text": "…", "label": 1}'
            )
    if problems:
        raise DataError("\n".join(problems))
    return rows


def _id_of(row: Mapping[str, Any], task: Task) -> str:
    """Return the id of a row.

    Raises:
        DataError: if the task cannot read the row, or the row is too long.
    """
    rows = read_rows(row, task)
    if len(json.dumps(row)) > MAX_ROW_BYTES:
        raise DataError(f"the row has more than {MAX_ROW_BYTES} bytes; shorten the row")
    content = json.dumps([[one.example.user, one.content] for one in rows])
    return hashlib.sha256(content.encode()).hexdigest()[:_ID_DIGITS]


def _read_line(line: bytes) -> OwnExample | None:
    """Return the example on a line of the file, or None if the line is damaged."""
    try:
        content = json.loads(line)
        example = OwnExample(content["id"], float(content["time"]), content["row"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return example if isinstance(example.id, str) and isinstance(example.row, dict) else None
