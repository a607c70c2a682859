"""Statistics of the columns of records, and guesses at the columns' roles in a task."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Literal

import numpy as np

from samara.shared.tasks.base_task import USER_FIELD
from samara.shared.tasks.label_values import value_text
from samara.simulations.project.records import Record

Kind = Literal["classification", "choice", "generation"]
MOST_LABELS = 50
_LABEL_NAMES = (
    *("label", "labels", "class", "category", "target", "sentiment", "rating", "stars", "score"),
    *("answer", "answers", "intent", "topic", "type"),
)
_TEXT_NAMES = ("text", "sentence", "review", "comment", "content", "body", "message", "question")
_USER_NAMES = ("author", "annotator", "worker", "rater", "speaker", "person", "client", "username")
_CANDIDATES = re.compile(
    r"(choice|option|candidate|ending|sol|answer|alternative)[ _-]?([a-z]|\d+)"
)
_CANDIDATE_LISTS = ("choices", "options", "candidates", "endings", "alternatives")
_UNUSABLE = re.compile(r"[{}|:!]")


@dataclass(frozen=True)
class Column:
    """Statistics of a column's values.

    Attributes:
        name: name of the column.
        rows: number of records with a value in the column.
        values: count of each distinct value, as text; empty for lists and objects.
        words: mean number of words of the texts; 0 if the column contains no texts.
        is_list: whether the column contains lists.
        is_object: whether the column contains objects.
    """

    name: str
    rows: int
    values: Counter[str]
    words: float
    is_list: bool
    is_object: bool

    @property
    def distinct(self) -> float:
        """The share of the column's values that are distinct."""
        return len(self.values) / self.rows if self.rows else 0.0

    @property
    def may_be_label(self) -> bool:
        """Return whether the values repeat often enough to be labels."""
        return 0 < len(self.values) <= MOST_LABELS and self.distinct <= 0.5

    @property
    def may_be_user(self) -> bool:
        """Return whether the values repeat often enough to name users with several rows each."""
        return 1 < len(self.values) <= 0.5 * self.rows and self.words < 3

    @property
    def is_usable(self) -> bool:
        """Return whether a template can refer to the column."""
        return bool(self.name) and not _UNUSABLE.search(self.name)


@dataclass(frozen=True)
class Roles:
    """The columns that a task reads.

    Attributes:
        kind: kind of the task.
        texts: columns with texts, in order.
        label: column with the right answer.
        candidates: columns with one candidate each, or one column with lists of candidates.
        user: column with the user of a row; empty without such a column.
    """

    kind: Kind
    texts: tuple[str, ...]
    label: str
    candidates: tuple[str, ...] = ()
    user: str = ""


def is_missing(value: object) -> bool:
    """Return whether a value is missing: null, NaN or a blank text."""
    if isinstance(value, float):
        return isnan(value)
    return value is None or (isinstance(value, str) and not value.strip())


def describe_columns(records: Sequence[Record]) -> dict[str, Column]:
    """Return statistics of each column of records, by name, in order of appearance."""
    names = dict.fromkeys(name for record in records for name in record)
    return {name: _describe(name, [record.get(name) for record in records]) for name in names}


def _describe(name: str, cells: Sequence[object]) -> Column:
    values = [cell for cell in cells if not is_missing(cell)]
    plain = [value for value in values if isinstance(value, str | int | float)]
    words = [len(value.split()) for value in plain if isinstance(value, str)]
    return Column(
        name,
        len(values),
        Counter(map(value_text, plain)),
        float(np.mean(words)) if words else 0.0,
        bool(values) and all(isinstance(value, list) for value in values),
        bool(values) and all(isinstance(value, dict) for value in values),
    )


def names_among_values(columns: dict[str, Column]) -> list[str]:
    """Return the columns whose name is one of their values, as in a CSV file without a header.

    A header with a usual name is one for certain; the result is then empty.
    """
    usual = {USER_FIELD, *_LABEL_NAMES, *_TEXT_NAMES, *_USER_NAMES}
    if any(name.lower() in usual for name in columns):
        return []
    return [name for name, column in columns.items() if name in column.values]


def guess_roles(columns: dict[str, Column]) -> Roles:
    """Return the likely columns of a task; texts and label may be empty."""
    candidates = tuple(
        name for name in columns if _CANDIDATES.fullmatch(name.lower()) and columns[name].words
    )
    if len(candidates) < 2:
        lists = [name for name in columns if name.lower() in _CANDIDATE_LISTS]
        candidates = tuple(name for name in lists if columns[name].is_list)[:1]
    user = _guess_user(columns)
    label = _guess_label(columns, {user, *candidates})
    texts = guess_texts(columns, {label, user, *candidates})
    if candidates:
        return Roles("choice", texts, label, candidates, user)
    if label and not columns[label].may_be_label:
        return Roles("generation", texts, label, user=user)
    return Roles("classification", texts, label, user=user)


def task_of_texts(columns: dict[str, Column]) -> str:
    """Return the shipped task for chats, prompts with responses, or plain texts; otherwise empty.

    Plain texts have a column ``text``, and no other columns except user and time.
    """
    if "messages" in columns and columns["messages"].is_list:
        return "chat"
    if {"prompt", "response"} <= columns.keys():
        return "responses"
    alone = {"text"} <= columns.keys() <= {"text", USER_FIELD, "time"}
    return "texts" if alone and columns["text"].words >= 3 else ""


def _guess_label(columns: dict[str, Column], others: set[str]) -> str:
    named = [n for known in _LABEL_NAMES for n in columns if n.lower() == known]
    named = [name for name in named if name not in others]
    repeating = [name for name in named if columns[name].may_be_label]
    unnamed = [
        name
        for name, column in columns.items()
        if column.may_be_label and column.words < 3 and name not in others
    ]
    # if no column has a usual name, a guess among several would be arbitrary
    found = repeating or named or (unnamed if len(unnamed) == 1 else [])
    return found[0] if found else ""


def guess_texts(columns: dict[str, Column], others: set[str]) -> tuple[str, ...]:
    """Return the columns with texts.

    These are the column with a usual name, or all columns whose values are long and rarely repeat.

    Args:
        columns: statistics of the columns.
        others: columns with other roles.
    """
    free = {name: column for name, column in columns.items() if name not in others}
    usual = [name for name in free if name.lower() == "text"]
    if usual:
        return (usual[0],)
    long = [n for n, c in free.items() if c.words >= 3 and c.distinct > 0.2]
    if len(long) > 3:  # more columns are likely to be notes about the row, and not its text
        long = [name for name in long if name.lower() in _TEXT_NAMES] or long[:1]
    return tuple(long)


def _guess_user(columns: dict[str, Column]) -> str:
    """Return the column ``user``, or the only other column with a usual name for users."""
    likely = [
        name
        for name, column in columns.items()
        if re.sub(r"[ _-]?(id|name|code|number|hash)$", "", name.lower())
        in (USER_FIELD, *_USER_NAMES)
        and column.may_be_user
    ]
    if USER_FIELD in columns:
        return USER_FIELD
    return likely[0] if len(likely) == 1 else ""


def label_order(value: str) -> tuple[bool, float, str]:
    """Return the sort key of a label value; numbers come first, in numerical order."""
    number = re.fullmatch(r"-?\d+(\.\d+)?", value) is not None
    return not number, float(value) if number else 0.0, value


def quote_commas(value: str) -> str:
    """Return a value for a list with commas, in quotation marks if it has a comma itself."""
    return f'"{value}"' if "," in value else value
