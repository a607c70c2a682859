"""Label values: the values that stand for a task's answers in the data, as text."""

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import BeforeValidator

from samara.shared.errors import TaskError


def value_text(value: object) -> str:
    """Return a label value as canonical text: equal values in different notations give one text.

    Surrounding blanks are ignored. ``True`` equals ``true``, and 1, 1.0 and ``1.0`` are equal.

    >>> [value_text(value) for value in (True, " True ", "1.00", -2.0, "1.5")]
    ['true', 'true', '1', '-2', '1.5']
    """
    text = str(value).strip()
    if text.lower() in ("true", "false"):
        return text.lower()
    whole = re.fullmatch(r"(-?\d+)\.0+", text)
    return whole[1] if whole else text


def optional_value_text(value: object) -> str | None:
    """Return a label value as text, or None for None."""
    return None if value is None else value_text(value)


def _values_as_text(labels: object) -> object:
    if not isinstance(labels, list | tuple):
        raise ValueError("must be a list with one value, or list of values, per answer")
    entries = [entry if isinstance(entry, list | tuple) else [entry] for entry in labels]
    for value in (value for entry in entries for value in entry):
        if not isinstance(value, str | int):
            raise ValueError(
                f"contains {value!r}, but a value must be a string, an integer or a boolean"
            )
    return [[value_text(value) for value in entry] for entry in entries]


LabelValues = Annotated[tuple[tuple[str, ...], ...], BeforeValidator(_values_as_text)]
"""Values that stand for each answer in the data, as text."""


def find_label(name: str, labels: Sequence[Sequence[str]], value: object) -> int:
    """Return the index of the answer for a label value.

    Args:
        name: name of the task.
        labels: values for each answer.
        value: value in the data.

    Raises:
        TaskError: if no answer has this value.
    """
    text = value_text(value)
    for index, values in enumerate(labels):
        if text in values:
            return index
    known = [text for values in labels for text in values]
    hint = ""
    if text in ("true", "false"):
        hint = '; name it in a task file, such as labels = [false, true] (task = "FILE.toml")'
    raise TaskError(f"label {value!r} is unknown; task {name!r} knows {', '.join(known)}{hint}")


def find_nearest_label(name: str, labels: Sequence[Sequence[str]], value: object) -> int:
    """Return the index of the answer whose number is nearest to a label value.

    A value halfway between two numbers belongs to the higher one.

    Args:
        name: name of the task.
        labels: one number for each answer, as text, in rising order.
        value: value in the data.

    Raises:
        TaskError: if the value is not a number between the lowest and the highest label.
    """
    numbers = [float(number) for (number,) in labels]
    try:
        given = float(value_text(value))
    except ValueError:
        given = math.nan
    if not numbers[0] <= given <= numbers[-1]:
        raise TaskError(
            f"label {value!r} is not a number from {labels[0][0]} to {labels[-1][0]}, which task "
            f"{name!r} needs; correct the row"
        )
    return min(range(len(numbers)), key=lambda index: (abs(numbers[index] - given), -index))


def are_equally_spaced(labels: Sequence[Sequence[str]]) -> bool:
    """Return whether each answer has a single number, and the numbers rise by equal steps."""
    try:
        numbers = [float(number) for (number,) in labels]
    except ValueError:
        return False
    steps = [second - first for first, second in pairwise(numbers)]
    return bool(steps) and steps[0] > 0 and all(step == steps[0] for step in steps)


def check_label_values(labels: LabelValues, count: int | None, answers: str) -> LabelValues:
    """Check label values, and return them unchanged.

    Args:
        labels: values for each answer.
        count: number of answers, or None if unknown.
        answers: word for the answers in messages, such as "words".

    Raises:
        ValueError: if values are wrong. The message names all mistakes.
    """
    mistakes = []
    if count is not None and count != len(labels):
        mistakes.append(f"has {len(labels)} entries for {count} {answers}")
    if () in labels:
        mistakes.append(f"entry {labels.index(())} is empty")
    if repeated := repeated_values([value for values in labels for value in values]):
        mistakes.append(f"contains {', '.join(repeated)} more than once")
    if mistakes:
        raise ValueError("; ".join(mistakes))
    return labels


def repeated_values(values: list[str]) -> list[str]:
    """Return each value that occurs more than once, in the order of first occurrence."""
    return [value for value in dict.fromkeys(values) if values.count(value) > 1]
