"""Rows of a task's data in files, and the examples loaded from them."""

import csv
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from samara.shared.errors import DataError
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.data import load_examples
from samara.shared.tasks.kinds import Task
from samara.shared.tasks.rows import Example

TASK = load_task("sst2")


def write_jsonl(path: Path, rows: Iterable[object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> str:
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def rows_of(count: int, word: str = "row", **fields: object) -> list[dict[str, object]]:
    return [{"text": f"{word} {i}", "label": i % 2, **fields} for i in range(count)]


def sizes(examples: Sequence[Example]) -> dict[str, int]:
    return dict(Counter(example.split for example in examples))


def messages(path: str, task: Task = TASK) -> list[str]:
    with pytest.raises(DataError) as caught:
        load_examples(path, task, 0)
    return str(caught.value).splitlines()
