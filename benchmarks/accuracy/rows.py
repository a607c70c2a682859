"""The rows that a benchmark has measured, in a file with one line of JSON per row.

Each row is written as soon as it is measured, so the same command continues after an interruption.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samara.shared.storage.events import append_event, read_events

Row = dict[str, Any]


class Rows:
    """The measured rows in a file."""

    def __init__(self, file: Path) -> None:
        """Read the rows of a file, and create the file's folder if it is missing.

        Raises:
            SamaraError: if a line is not a JSON object.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file
        self._rows = read_events(file)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def find(self, **values: Any) -> Row | None:
        """Return the first row with these values, or None."""
        return next((row for row in self._rows if values.items() <= row.items()), None)

    def add(self, row: Row) -> Row:
        """Append a row, print it, and return it as it is read from the file."""
        append_event(self._file, row)
        line = json.dumps(row, sort_keys=True)
        print(line, flush=True)
        self._rows.append(json.loads(line))
        return self._rows[-1]
