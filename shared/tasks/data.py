"""Loading of a task's examples from JSON, CSV, Parquet, folders, or a Hugging Face data set.

A row has the fields that the task names, a label or an answer, and optionally a user. A source may
lack the validation or test split. A missing split is taken from each user's training rows, by a
hash of the row's content, by a hash of its text, or by its time. So a row stays in its split when
the file is sorted or saved in another format, or when the wording of the prompt changes.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from samara.shared.errors import DataError
from samara.shared.tasks.kinds import ClassificationTask, Task
from samara.shared.tasks.row_files import read_row_file
from samara.shared.tasks.rows import (
    Example,
    Row,
    describe_missing_fields,
    is_unlabelled,
    read_rows,
    required_fields,
)
from samara.shared.tasks.sources import (
    SPLITS,
    find_data_files,
    is_hub_name,
    load_hub_splits,
    no_such_source,
)
from samara.shared.tasks.text_folders import read_text_folders
from samara.shared.tasks.text_split import CUT_PERCENT, SplitRule, split_of_text

SHOWN_PROBLEMS = 5
_UNDATED = "data sets of the hub cannot be split by time; set data.split to random"


def load_examples(
    path: str, task: Task, seed: int, limit: int = 0, split: SplitRule = "random"
) -> list[Example]:
    """Load the examples of all splits, ordered by split as in SPLITS, then as in the source.

    A source has one of these forms:

    - a file of `SUFFIXES`, split 70/10/20 into training, validation and test: JSON lines, a JSON
      array, or CSV with commas, semicolons, tabs or vertical bars.
    - a folder with ``train.*``, and optionally ``validation.*`` and ``test.*``. 10 % of the
      training rows replace a missing validation file, and 20 % a missing test file.
    - a folder with one file per user, named after the user. Each file is split 70/10/20.
    - a folder with one folder per user. It contains files that are split 70/10/20, or one file for
      each split.
    - a folder with one folder of ``.txt`` files per label, split 70/10/20, or with such a folder
      for each split.
    - for plain texts, a folder with one folder of ``.txt`` and ``.md`` files per person. The texts
      of each person are split 70/10/20.
    - a Parquet file, or a folder with the Parquet files of a data set, as stored on the hub.
    - a Hugging Face data set, ``owner/name`` or ``owner/name:config``, with the splits of a folder,
      or with ``validation_matched`` and ``test_matched``. Rows without a label, or with the label
      −1, are left out.

    If rows have users, each user's rows are split separately. A user with three rows or more then
    has examples in every split, unless `split` is ``text``.

    Args:
        path: path of the source, or name of a Hugging Face data set.
        task: task that names the fields and the right answers.
        seed: seed of the random choice of rows for missing splits and for ``limit``.
        limit: largest number of training examples; 0 for no limit.
        split: rule that chooses the rows of missing splits. ``random`` draws from each user's rows.
            ``time`` makes a user's newest rows test examples, and the preceding rows validation
            examples. ``text`` decides by a row's normalized text, so a user may have no example in
            a split.

    Raises:
        DataError: if there is no such source, or some of its rows are wrong. The message names the
            first wrong rows.
    """
    problems: list[str] = []
    splits = read_splits(path, task, problems, dated=split == "time")
    if problems:
        hidden = len(problems) - SHOWN_PROBLEMS
        shown = problems[:SHOWN_PROBLEMS] + ([f"and {hidden} more"] if hidden > 0 else [])
        needs = ", ".join(names[0] for names in required_fields(task))
        shown.append(f"Task {task.name!r} needs rows with {needs}; correct the data or the task.")
        raise DataError("\n".join(shown))

    missing = [name for name in CUT_PERCENT if name not in splits]
    splits |= _cut_splits(splits["train"], missing, seed, split)
    if 0 < limit < len(splits["train"]):
        train = splits["train"]
        drawn = sorted(range(len(train)), key=lambda index: train[index].random_key("limit", seed))
        splits["train"] = [train[index] for index in sorted(drawn[:limit])]
    return [replace(row.example, split=name) for name in SPLITS for row in splits[name]]


def check_labels(examples: Iterable[Example], task: Task, path: str) -> None:
    """Check that a classification's training examples have at least two labels.

    Pass the examples of all clients together, because all examples of one person may have the same
    label.

    Args:
        examples: examples of all splits.
        task: task of the examples.
        path: name of the examples' source.

    Raises:
        DataError: if all labels are equal.
    """
    if not isinstance(task, ClassificationTask):
        return
    labels = {example.label for example in examples if example.split == "train"}
    if len(labels) == 1:
        word = task.words[labels.pop()]
        raise DataError(
            f"{path}: every training row has the label of {word!r}, so there is nothing to learn; "
            f"add rows of the other labels, or correct `labels` in the task {task.name!r}"
        )


def _cut_splits(
    rows: Sequence[Row], missing: Sequence[str], seed: int, rule: SplitRule
) -> dict[str, list[Row]]:
    """Divide training rows into training and the missing splits, and return the rows by split."""
    if rule == "text":
        split_of = [split_of_text(row.example.source, seed, missing) for row in rows]
    else:
        split_of = _cut_each_user(rows, missing, seed, by_time=rule == "time")
    return {
        split: [row for row, its in zip(rows, split_of, strict=True) if its == split]
        for split in ("train", *missing)
    }


def _cut_each_user(
    rows: Sequence[Row], missing: Sequence[str], seed: int, by_time: bool
) -> list[str]:
    """Return the split of every row, so that each user keeps at least one training row."""
    users: defaultdict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        users[row.example.user].append(index)
    split_of = ["train"] * len(rows)
    for indices in users.values():
        rest = sorted(indices, key=lambda index: rows[index].random_key("split", seed))
        # the newest rows become test examples, and those before them validation examples
        if by_time:
            rest.sort(key=lambda index: -rows[index].time)
        for split in missing:
            wanted = max(1, (len(indices) * CUT_PERCENT[split] + 50) // 100)
            count = min(wanted, len(rest) - 1)
            for index in rest[:count]:
                split_of[index] = split
            rest = rest[count:]
    return split_of


def read_splits(
    path: str, task: Task, problems: list[str], growing: bool = False, dated: bool = False
) -> dict[str, list[Row]]:
    """Read the splits of a source, including ``train``.

    Args:
        path: as for `load_examples`.
        task: task that names the fields and the right answers.
        problems: output list of problems with single rows.
        growing: whether rows may be added during the call, as in `read_row_file`.
        dated: whether every row must have a time. A text file's time is its modification time.

    Raises:
        DataError: if there is no such source, or `growing` is set and the source's format cannot
            grow.
    """
    try:
        return _read(path, task, problems, growing, dated)
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error


def _read(
    path: str, task: Task, problems: list[str], growing: bool, dated: bool
) -> dict[str, list[Row]]:
    if os.path.exists(path):
        files = find_data_files(Path(path), growing)
        if files.form == "repository" and dated:
            raise DataError(f"{path}: {_UNDATED}")
        if files.form == "repository":
            return _read_hub(path, task, problems)
        if files.form == "labels":
            return {
                split: read_text_folders(folder, task, problems)
                for split, (folder,) in files.splits.items()
            }
        splits: dict[str, list[Row]] = {}
        for split, parts in files.splits.items():
            splits[split] = []
            for part in parts:
                owner = files.owner_of(part)
                splits[split] += read_row_file(part, task, problems, owner, growing, dated)
        return splits
    if growing:
        raise DataError(
            f"{path!r}: no such file or folder; data.watch needs an existing file or folder, which "
            "may be empty"
        )
    if is_hub_name(path) and dated:
        raise DataError(f"{path}: {_UNDATED}")
    if is_hub_name(path):
        return _read_hub(path, task, problems)
    raise no_such_source(path)


def _read_hub(name: str, task: Task, problems: list[str]) -> dict[str, list[Row]]:
    splits = {}
    for split, (key, part) in load_hub_splits(name).items():
        if rows := _read_hub_rows(part, f"{name}[{key}]", task, problems):
            splits[split] = rows
    if "train" not in splits and not problems:
        raise DataError(f"{name!r}: no row of the split 'train' has a label; use other data")
    return splits


def _read_hub_rows(split: Any, source: str, task: Task, problems: list[str]) -> list[Row]:
    if missing := describe_missing_fields(task, split.column_names):
        problems.append(f"{source}: {missing}")
        return []
    names = {task.each, *task.user_names}.union(*required_fields(task))
    names |= {name.split(".")[0] for name in names}
    columns = [name for name in split.column_names if name in names]
    rows = []
    for number, record in enumerate(split.select_columns(columns).to_list()):
        if is_unlabelled(record, task):
            continue
        try:
            rows += read_rows(record, task)
        except DataError as error:
            problems.append(f"{source} row {number}: {error}")
    return rows
