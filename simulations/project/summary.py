"""Summary lines about records: splits, labels, users, lengths, languages, and faulty rows."""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from samara.shared.tasks.label_values import value_text
from samara.simulations.project.columns import Column, Roles, is_missing, label_order, quote_commas
from samara.simulations.project.languages import language_of
from samara.simulations.project.records import RawData, Record

_SHOWN_LABELS = 12


def describe_data(data: RawData, columns: dict[str, Column], roles: Roles) -> Iterator[str]:
    """Yield lines about the data; lines that begin with ``note:`` are warnings.

    Args:
        data: records of all splits.
        columns: statistics of the columns.
        roles: columns that the task reads.
    """
    counts = ", ".join(f"{len(rows):,} {split}" for split, rows in data.splits.items())
    yield f"rows: {counts} ({data.form})"
    missing = [split for split in ("validation", "test") if split not in data.splits]
    if missing:
        yield f"      {' and '.join(missing)} rows will be taken from the training rows"
    yield "columns: " + ", ".join(map(_describe_column, columns.values()))
    yield from _labels(data, columns, roles)
    yield from _users(columns, roles)
    yield from _texts(data, roles)
    yield from _faults(data, roles)


def _describe_column(column: Column) -> str:
    if column.is_list:
        return f"{column.name} (lists)"
    if column.is_object:
        return f"{column.name} (objects)"
    if column.words >= 3:
        return f"{column.name} (texts of {column.words:.0f} words)"
    return f"{column.name} ({len(column.values):,} values)"


def _labels(data: RawData, columns: dict[str, Column], roles: Roles) -> Iterator[str]:
    column = columns.get(roles.label)
    if roles.kind == "generation" and column and all(map(_is_decimal, column.values)):
        yield (
            f"note: {column.name} contains decimal numbers, and each number is trained as a "
            "separate text; convert ratings to classes, such as low and high"
        )
    if roles.kind != "classification" or column is None:
        return
    commonest = sorted(
        column.values.most_common(_SHOWN_LABELS), key=lambda own: label_order(own[0])
    )
    shown = [f"{quote_commas(value)} {count:,}" for value, count in commonest]
    more = len(column.values) - len(shown)
    yield f"labels ({column.name}): {', '.join(shown)}" + (f" and {more} more" if more > 0 else "")
    if len(column.values) == 1:
        yield "note: all rows have the same label, so a model cannot learn from them"
    alike: dict[str, list[str]] = defaultdict(list)
    for value in sorted(column.values):
        alike[value.strip().casefold()].append(repr(value))
    for same in filter(lambda values: len(values) > 1, alike.values()):
        yield f"note: the labels {', '.join(same)} differ only in case; use one spelling"
    trained = {value_text(row.get(roles.label)) for row in data.splits["train"]}
    for split in ("validation", "test"):
        only = {value_text(row.get(roles.label)) for row in data.splits.get(split, ())} - trained
        if only := {value for value in only if value in column.values}:
            yield f"note: {split} rows have {', '.join(sorted(only))}, but no training row has"
    words = language_of(value.replace("_", " ") for value in column.values)
    texts = language_of(_text_of(row, roles) for row in data.splits["train"])
    if words and texts and words != texts:
        yield (
            f"note: the labels look {words} and the texts {texts}; use label words in the language "
            "of the texts if the model knows it"
        )


def _is_decimal(value: str) -> bool:
    return re.fullmatch(r"[-+]?\d*\.\d+(e[-+]?\d+)?", value) is not None


def _users(columns: dict[str, Column], roles: Roles) -> Iterator[str]:
    counts = list(columns[roles.user].values.values()) if roles.user else []
    if not counts:
        yield "users: no column names users; rows are assigned to clients at random"
        read = {roles.label, *roles.texts, *roles.candidates}
        free = [column for column in columns.values() if column.name not in read]
        if possible := [c.name for c in free if c.may_be_user and len(c.values) > 2]:
            yield (
                f"note: if {' or '.join(possible)} names the user of a row, give the column as "
                "--user; each user is then a client"
            )
        return
    yield (
        f"users ({roles.user}): {len(counts):,}, with {min(counts):,} to {max(counts):,} rows, "
        f"median {np.median(counts):,.0f}; each user is a client"
    )
    if few := sum(count < 3 for count in counts):
        yield f"note: {few:,} users have fewer than 3 rows, too few for a row in every split"


def _texts(data: RawData, roles: Roles) -> Iterator[str]:
    texts = [_text_of(row, roles) for row in data.all]
    if not roles.texts:
        return
    words = np.array([len(text.split()) for text in texts])
    language = language_of(texts)
    yield (
        f"words of a text ({' + '.join(roles.texts)}): median {np.median(words):.0f}, 95th "
        f"percentile {np.percentile(words, 95):.0f}, at most {words.max():,}; language: "
        f"{language or 'unclear'}"
    )


def _text_of(row: Record, roles: Roles) -> str:
    cells = [row.get(name) for name in roles.texts]
    return " ".join(str(cell) for cell in cells if not is_missing(cell))


def _faults(data: RawData, roles: Roles) -> Iterator[str]:
    """Yield lines about empty rows, duplicate rows, and rows in two splits."""
    empty = sum(not _text_of(row, roles) for row in data.all)
    if empty:
        yield f"note: {empty:,} rows have no text; delete them"
    unlabelled = sum(is_missing(row.get(roles.label)) for row in data.all)
    if unlabelled:
        yield f"note: {unlabelled:,} rows have no {roles.label}; delete them"
    keys = {split: [_key(row, roles) for row in rows] for split, rows in data.splits.items()}
    repeats = Counter(key for split in keys.values() for key in split)
    answers = defaultdict(set)
    for row in data.all:
        answers[_key(row, roles)].add(str(row.get(roles.label)))
    if doubled := sum(count - 1 for count in repeats.values()):
        torn = sum(len(found) > 1 for found in answers.values())
        repeat = "row repeats" if doubled == 1 else "rows repeat"
        line = f"duplicates: {doubled:,} {repeat} the text of another row"
        yield line + (f", and {torn:,} texts have different labels" if torn else "")
    trained = set(keys["train"])
    for split in ("validation", "test"):
        if both := sum(key in trained for key in keys.get(split, ())):
            yield (
                f"note: {both:,} {split} rows are also training rows; their results are too good"
            )


def _key(row: Record, roles: Roles) -> Hashable:
    """Return a row's user, texts and candidates; rows with equal keys are duplicates."""
    return tuple(str(row.get(n)) for n in (roles.user, *roles.texts, *roles.candidates))


def example_texts(records: Sequence[Record], roles: Roles, value: str, count: int = 2) -> list[str]:
    """Return the texts of at most `count` rows with a label, cut to 90 characters."""
    found = [_text_of(r, roles) for r in records if value_text(r.get(roles.label)) == value]
    return [text if len(text) <= 90 else text[:89] + "…" for text in found[:count]]
