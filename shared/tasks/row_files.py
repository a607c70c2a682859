"""Reading of files of rows: JSON and CSV, plain or compressed by gzip.

Files are read piece by piece, so that only the resulting rows are in memory. Every reported problem
names its line.
"""

import csv
import gzip
import io
import itertools
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from samara.shared.errors import DataError
from samara.shared.tasks.json_arrays import ArrayError, array_elements
from samara.shared.tasks.kinds import Task
from samara.shared.tasks.rows import Row, describe_missing_fields, read_rows

_TABLES = (".csv", ".tsv")
_PACKED = ".gz"
_PLAIN_SUFFIXES = (".jsonl", ".json", *_TABLES)
SUFFIXES = (*_PLAIN_SUFFIXES, *(suffix + _PACKED for suffix in _PLAIN_SUFFIXES))
"""File name suffixes of files with rows."""
SUFFIXES_SHOWN = f"{', '.join(_PLAIN_SUFFIXES)}, or one of these and {_PACKED}"
LATEST_TIME = 2.0**40
"""Latest plausible time of a row, in seconds since 1970. A later time is a mistake."""
_MOST_LETTERS = 2**31 - 1
"""Largest number of characters in a CSV cell. Python's default limit is 131,072."""

Report = Callable[[int, str], None]
"""Function that reports a problem, given its line number and a description."""
Records = Iterator[tuple[int, Mapping[str, object]]]
"""Records of a file, each with the number of its first line."""
_SEPARATORS = ",;\t|"


def suffix_of(path: Path) -> str:
    """Return a file name's suffix among `SUFFIXES` in lower case, or an empty text."""
    name = path.name.lower()
    ends = [suffix for suffix in SUFFIXES if name.endswith(suffix)]
    return max(ends, key=len, default="")


def is_table(path: Path) -> bool:
    """Return whether a file is CSV, whose first row has the names of the columns."""
    return suffix_of(path).removesuffix(_PACKED) in _TABLES


def stem_of(path: Path) -> str:
    """Return the name of a file of rows without its suffix."""
    return path.name.removesuffix(path.name[len(path.name) - len(suffix_of(path)) :])


def read_row_file(
    path: Path,
    task: Task,
    problems: list[str],
    owner: str = "",
    growing: bool = False,
    dated: bool = False,
) -> list[Row]:
    """Read the rows of a file of JSON, or of CSV.

    Args:
        path: the file.
        task: task that names the fields and the right answers.
        problems: output list of problems with single rows, each with file and line.
        owner: user of all rows; empty if rows name their user.
        growing: whether lines may be appended during the call. The file may then be empty. Text
            after the last newline is read if it is a complete row, and otherwise ignored. Rows get
            a time: the value of their field ``time`` (seconds since 1970), or the file's
            modification time.
        dated: whether every row must state its time, as seconds since 1970 or as a date.

    Raises:
        DataError: if the file has another suffix or is not a valid gzip file. Also if `growing` is
            set and the file is not a plain file of JSON lines, because half a CSV row can look like
            a whole row.
        OSError: if the file cannot be read.
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
                    f"belongs to user {example.user!r}, but the file is named after {owner!r}; to "
                    "use the users in the rows, give the path of the file instead of the folder",
                )
            time = _time_of(record, changed) if growing else stated
            rows.append(Row(replace(example, user=owner or example.user), content, time))
    if not rows and not growing and len(problems) == before:
        report(1, "the file contains no row; add rows, or delete the file")
    return rows


def read_records(
    path: Path,
    report: Report,
    describe_header: Callable[[list[str]], str] = lambda names: "",
    growing: bool = False,
) -> Records:
    """Yield the records of a file before any check by a task, with their line numbers.

    Args:
        path: the file.
        report: function that is called for each line that is not a record.
        describe_header: function that describes mistakes in a CSV file's column names, or returns
            an empty text.
        growing: as for `read_row_file`.

    Raises:
        DataError, OSError: as in `read_row_file`.
    """
    suffix = suffix_of(path)
    if not suffix:
        raise DataError(f"{path}: the file's name must end in {SUFFIXES_SHOWN}")
    if growing and suffix != ".jsonl":
        raise DataError(
            f"{path}: this file cannot be watched, because half a row of CSV or of a JSON array "
            "can look like a whole row; write JSON lines to a file ending in .jsonl"
        )
    try:
        _report_other_encodings(path, report, growing)
        with _opened(path, growing) as content:
            if is_table(path):
                text = io.TextIOWrapper(content, "utf-8-sig", errors="replace", newline="")
                separator = "\t" if suffix.startswith(".tsv") else ""
                yield from _csv_records(text, report, describe_header, separator)
            else:
                # Lines end at newlines only: JSON strings may contain other line separators.
                text = io.TextIOWrapper(content, "utf-8-sig", errors="replace", newline="\n")
                yield from _json_records(text, report, growing)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: this gzip file cannot be unpacked ({error}); compress the rows again"
        ) from error


def read_time(record: Mapping[str, object]) -> float:
    """Return the time of a row, in seconds since 1970. Dates without a time zone are UTC.

    Raises:
        DataError: if the row does not state its time.
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
    """Return the time of a row, or the file's time if the row states no usable time."""
    time = record.get("time")
    if isinstance(time, int | float) and not isinstance(time, bool) and 0 <= time < LATEST_TIME:
        return float(time)
    return changed


@contextmanager
def _opened(path: Path, growing: bool = False) -> Iterator[BinaryIO]:
    """Open a file, decompressed if necessary. A growing file yields only its complete lines."""
    if growing:
        yield io.BytesIO(_whole_lines(path.read_bytes()))
    elif suffix_of(path).endswith(_PACKED):
        with gzip.open(path, "rb") as packed:
            yield cast(BinaryIO, packed)
    else:
        with path.open("rb") as plain:
            yield plain


def _report_other_encodings(path: Path, report: Report, growing: bool) -> None:
    with _opened(path, growing) as content:
        others = [number for number, line in enumerate(content, 1) if not _is_utf8(line)]
    if others:
        more = f" (other such lines: {len(others) - 1:,})" if len(others) > 1 else ""
        report(others[0], f"is not UTF-8; save the file in UTF-8{more}")


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _whole_lines(content: bytes) -> bytes:
    """Return the bytes without an incomplete last line.

    A last line without a newline is kept if it is a complete JSON object, because such an object
    cannot be the beginning of a longer one.
    """
    end = content.rfind(b"\n") + 1
    try:
        json.loads(content[end:])
    except (ValueError, RecursionError):
        return content[:end]
    return content


def _json_records(text: TextIO, report: Report, growing: bool) -> Records:
    """Yield the objects of a JSON array, or of JSON lines."""
    number, line = _first_line(text)
    if line.lstrip().startswith("[") and not growing:
        values = array_elements(text, line, number)
    else:
        values = _values_of_lines(text, line, number, report)
    try:
        for place, value in values:
            if isinstance(value, dict):
                yield place, value
            else:
                report(place, 'is not a JSON object such as {"text": "…", "label": 0}')
    except ArrayError as error:
        report(error.line, error.what)


def _first_line(text: TextIO) -> tuple[int, str]:
    """Return the first non-blank line, and its number."""
    number = 1
    line = text.readline()
    while line and not line.strip():
        number = number + 1
        line = text.readline()
    return number, line


def _values_of_lines(
    text: TextIO, line: str, number: int, report: Report
) -> Iterator[tuple[int, object]]:
    while line:
        if line.strip():
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                report(number, f"is not JSON, column {error.colno}: {error.msg}")
            except (ValueError, RecursionError) as error:
                report(number, f"is not JSON that can be read: {error}")
            else:
                yield number, value
        number = number + 1
        line = text.readline()


def _separator_of(header: str) -> str:
    """Return the separator of cells in a CSV header; a comma if there is none outside quotes."""
    bare = re.sub(r'"[^"]*"', "", header)
    return max(_SEPARATORS, key=bare.count)


def _csv_records(
    text: TextIO, report: Report, describe_header: Callable[[list[str]], str], separator: str
) -> Records:
    """Yield the rows below a header; blanks around the header's names are removed.

    Args:
        text: the file.
        report: function that is called for each line that is not a row.
        describe_header: see `read_records`.
        separator: separator of cells; empty to detect it from the header.
    """
    csv.field_size_limit(_MOST_LETTERS)
    first = text.readline()
    lines = itertools.chain([first], text)
    reader = csv.reader(lines, strict=True, delimiter=separator or _separator_of(first))
    line = 1
    try:
        header = [name.strip() for name in next(reader, [])]
        if header.count("") > 1:
            report(1, f"{header.count('')} columns have no name in the header; name or delete them")
            return
        repeated = [name for name in dict.fromkeys(header) if header.count(name) > 1]
        if repeated:
            report(
                1,
                f"the header names {', '.join(map(repr, repeated))} more than once; rename the "
                "columns",
            )
            return
        if "\ufffd" in "".join(header):
            return  # an earlier check has reported the line as not UTF-8
        if wrong := describe_header(header):
            report(1, wrong)
            return
        line = reader.line_num + 1
        for cells in reader:
            if len(cells) == len(header):
                yield line, dict(zip(header, cells, strict=True))
            elif cells:
                report(
                    line,
                    f"the row has {len(cells)} cells, but the header has {len(header)} columns; "
                    "correct the row",
                )
            line = reader.line_num + 1
    except csv.Error as error:
        report(
            line,
            f"the row that begins here is not CSV ({error}); correct it, because no later row was "
            "read",
        )
