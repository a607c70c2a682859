"""Files of rows: JSON lines and CSV, each problem with its line."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from samara.shared.errors import DataError
from samara.shared.tasks.kinds import Task
from samara.shared.tasks.rows import Row, describe_missing_fields, read_rows

SUFFIXES = (".jsonl", ".csv")
LATEST_TIME = 2.0**40
"""Later times, in seconds since 1970, are mistakes."""
_MOST_LETTERS = 2**31 - 1
"""Most letters of a CSV cell. The file is in memory already; Python's own limit is 131,072."""

Report = Callable[[int, str], None]
"""Reports a problem, given the number of its line and a description."""
Records = Iterator[tuple[int, Mapping[str, object]]]
"""Numbers of lines, and the records that begin there."""
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}


def read_row_file(
    path: Path,
    task: Task,
    problems: list[str],
    owner: str = "",
    growing: bool = False,
    dated: bool = False,
) -> list[Row]:
    """Read the rows of a file of JSON lines, or of CSV.

    Args:
        path: the file.
        task: task that names the fields and the right answers.
        problems: list that the problems with single rows are appended to, each with file and line.
        owner: user whom all rows belong to; empty if they say so themselves.
        growing: whether lines may be appended while this reads. The file may be empty then. What
            follows the last newline is a row if it is whole, and otherwise waited for. Rows get
            their time: their field ``time`` (seconds since 1970), or that of the file's last
            change.
        dated: whether every row must say its time, as seconds since 1970 or as a date.

    Raises:
        DataError: if the file has another suffix, or is growing CSV: half a row of it can look like
            a whole one.
        OSError: if it cannot be read.
    """

    def report(line: int, what: str) -> None:
        problems.append(f"{path}:{line}: {what}")

    changed = path.stat().st_mtime if growing else 0.0
    before = len(problems)
    rows = []
    for line, record in read_records(path, report, partial(describe_missing_fields, task), growing):
        try:
            file_rows = read_rows(record, task)
            stated = read_time(record) if dated else 0.0
        except DataError as error:
            report(line, str(error))
            continue
        for example, content, _ in file_rows:
            if owner and example.user not in ("", owner):
                report(
                    line,
                    f"belongs to user {example.user!r}, not to {owner!r} after whom the file is "
                    "named; to use the users in its rows, give the path of the file",
                )
            time = _time_of(record, changed) if growing else stated
            rows.append(Row(replace(example, user=owner or example.user), content, time))
    if not rows and not growing and len(problems) == before:
        report(1, "the file holds no row; add some, or delete it")
    return rows


def read_records(
    path: Path,
    report: Report,
    describe_header: Callable[[list[str]], str] = lambda names: "",
    growing: bool = False,
) -> Records:
    """Yield the records of a file as they are, with the numbers of their lines.

    Args:
        path: the file.
        report: called for each line that is no record.
        describe_header: describes what is wrong with a CSV file's column names; empty if nothing.
        growing: as for `read_row_file`.

    Raises:
        DataError, OSError: as `read_row_file`.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f"{path}: give a file that ends in {' or '.join(SUFFIXES)}")
    if growing and suffix == ".csv":
        raise DataError(
            f"{path}: CSV cannot be watched, since half a row may look like a whole one; write "
            "JSON lines"
        )
    text = _decode(path, report, growing)
    if suffix == ".csv":
        yield from _csv_records(text, report, describe_header)
    else:
        yield from _json_records(text, report)


def read_time(record: Mapping[str, object]) -> float:
    """Return when a row was written, in seconds since 1970; dates without a zone are in UTC.

    Raises:
        DataError: if the row does not say so.
    """
    value = record.get("time")
    try:
        if isinstance(value, str) and not _is_number(value):
            date = datetime.fromisoformat(value.strip())
            return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        seconds = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        seconds = math.nan
    if isinstance(value, bool) or not abs(seconds) < LATEST_TIME:
        what = f"is {value!r}" if "time" in record else "is missing"
        raise DataError(
            f"'time' {what}; give seconds since 1970, or a date such as 2026-01-31 or "
            "2026-01-31T08:15, or set data.split to random"
        )
    return seconds


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _time_of(record: Mapping[str, object], changed: float) -> float:
    """Return when a row was written, or the time of its file where it says nothing usable."""
    time = record.get("time")
    if isinstance(time, int | float) and not isinstance(time, bool) and 0 <= time < LATEST_TIME:
        return float(time)
    return changed


def _decode(path: Path, report: Report, growing: bool) -> str:
    content = path.read_bytes()
    if growing:
        content = _whole_lines(content)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        lines = enumerate(content.split(b"\n"), 1)
        first, *others = [number for number, line in lines if not _is_utf8(line)]
        more = f" (other such lines: {len(others):,})" if others else ""
        report(first, f"is not UTF-8; save the file in UTF-8{more}")
        return content.decode("utf-8-sig", errors="replace")


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _whole_lines(content: bytes) -> bytes:
    """Return lines without the last one if only half of it is there.

    A JSON object cannot be the beginning of a longer one.
    """
    end = content.rfind(b"\n") + 1
    try:
        json.loads(content[end:])
    except (ValueError, RecursionError):
        return content[:end]
    return content


def _json_records(text: str, report: Report) -> Records:
    # Not splitlines: JSON strings may hold other line separators than the newline.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            report(number, f"is not JSON, column {error.colno}: {error.msg}")
            continue
        except (ValueError, RecursionError) as error:
            report(number, f"is not JSON that can be read: {error}")
            continue
        if not isinstance(record, dict):
            report(number, 'is not a JSON object such as {"text": "…", "label": 0}')
        else:
            yield number, record


def _csv_records(text: str, report: Report, describe_header: Callable[[list[str]], str]) -> Records:
    csv.field_size_limit(_MOST_LETTERS)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    try:
        header = next(reader, [])
        if header.count("") > 1:
            report(1, f"{header.count('')} columns have no name in the header; name or delete them")
            return
        repeated = [name for name in dict.fromkeys(header) if header.count(name) > 1]
        if repeated:
            report(1, f"the header names {', '.join(map(repr, repeated))} more than once")
            return
        if len(header) == 1:
            for mark, name in _SEPARATORS.items():
                if mark in header[0]:
                    report(1, f"its cells are separated by {name}; save it with commas")
                    return
        if "\ufffd" in "".join(header):
            return  # reported as not UTF-8
        if wrong := describe_header(header):
            report(1, wrong)
            return
        line = reader.line_num + 1
        for cells in reader:
            if len(cells) == len(header):
                yield line, dict(zip(header, cells, strict=True))
            elif cells:
                report(line, f"has {len(cells)} cells under {len(header)} column names")
            line = reader.line_num + 1
    except csv.Error as error:
        report(line, f"the row that begins here is not CSV, and nothing after it was read: {error}")
