"""From a row of data to the examples that it makes; whatever is wrong with it is told at once."""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shared.errors import DataError, TaskError
from shared.tasks.kinds import ChoiceTask, ClassificationTask, GenerationTask, Span, Task

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Example:
    """One example, ready for any model.

    Attributes:
        text: what is read, already rendered by the task.
        label: index of what is right: of the label's word in the task, or in the answers.
        user: who it belongs to; empty if the data does not say.
        split: "train", "validation" or "test".
        answers: what may follow the text: every candidate of a choice, with the text behind it,
            or the accepted answers of a generation, of which the first is taught. Empty in a
            classification.
        cut: the part of the text that may be shortened, if the task names one.
    """

    text: str
    label: int
    user: str
    split: str
    answers: tuple[str, ...] = ()
    cut: Span | None = None


def data_fingerprint(examples: Iterable[Example]) -> str:
    """Four hex digits that change with any example or their order.

    Two bytes: over all clients of a run they tell one data set from another, and they are too few
    to recognise a text by.
    """
    content = [[e.text, e.label, e.answers] for e in examples]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:4]


class Row(NamedTuple):
    """An example, and what the row that it is from says.

    Attributes:
        example: its split is still empty.
        content: the values of the row's fields.
    """

    example: Example
    content: tuple[str, ...]

    def draw(self, purpose: str, seed: int) -> tuple[bytes, int]:
        """Draw this row's place in a random order, the same on every machine.

        Rows that say the same stand side by side, and so seldom in different splits.
        """
        content = json.dumps([purpose, seed, self.example.user, *self.content])
        return hashlib.sha256(content.encode()).digest(), self.example.label


def needed(task: Task) -> list[tuple[str, ...]]:
    """Every field that a row must have, as the names that are tried for it."""
    listed = [task.list_names] if isinstance(task, ChoiceTask) and task.list_names else []
    names = [*task.sources.values(), *listed, task.label_names]
    return list(dict.fromkeys(names))


def lack(task: Task, present: Collection[str]) -> str:
    """Say which needed fields a row or table with these columns lacks; empty if none."""
    if task.each and task.each.split(".")[0] in present:
        return ""
    missing = [
        " or ".join(map(repr, names))
        for names in needed(task)
        if not any(name in present or name.split(".")[0] in present for name in names)
    ]
    if not missing:
        return ""
    return f"lacks {', '.join(missing)}; it has {', '.join(map(repr, present)) or 'nothing'}"


def is_unlabelled(record: Mapping[str, object], task: Task) -> bool:
    """Whether a row comes without what is right, as test sets on the hub do: null, −1, nothing."""
    value = _found(record, task.label_names)
    if isinstance(task, GenerationTask) or not task.labels:
        return value is None or value in ("", [])
    return value is None or (value in (-1, "") and not any(str(value) in v for v in task.labels))


def read_rows(record: Mapping[str, object], task: Task) -> list[Row]:
    """Read the examples that a row makes: one, or one for each object in the field `each`.

    Raises:
        DataError: naming all mistakes of the row.
    """
    if missing := lack(task, record):
        raise DataError(missing)
    rows, mistakes = [], []
    for place, part in _parts(record, task):
        reading = _Reading(task, part)
        row = reading.row(record)
        mistakes += [place + mistake for mistake in reading.mistakes]
        if row is not None:
            rows.append(row)
    if mistakes:
        raise DataError("; ".join(mistakes))
    return rows


def _parts(record: Mapping[str, object], task: Task) -> Iterator[tuple[str, Mapping[str, object]]]:
    items = _found(record, (task.each,)) if task.each else _ABSENT
    if items is _ABSENT:
        yield "", record
        return
    if not (isinstance(items, list) and items and all(isinstance(i, Mapping) for i in items)):
        raise DataError(f"{task.each!r} is not a list of objects, of which each is an example")
    for number, item in enumerate(items):
        yield f"{task.each} {number}: ", {**record, **item}


class _Reading:
    """One example in the making.

    Attributes:
        mistakes: what is wrong with it.
    """

    def __init__(self, task: Task, part: Mapping[str, object]) -> None:
        self._task, self._part = task, part
        self.mistakes: list[str] = []

    def row(self, record: Mapping[str, object]) -> Row | None:
        """The example, if nothing is wrong."""
        task = self._task
        values = {name: self._text(names) for name, names in task.sources.items()}
        fields = {name: self._replaced(name, value) for name, value in values.items()}
        owner = self._part.get("user")
        user = "" if owner is None else self._as_text("user", owner)
        text, label, answers = self._read(fields)
        if not self.mistakes and not any(value.strip() for value in values.values()):
            self.mistakes.append("the text is empty")
        if self.mistakes:
            return None
        span = task.span(fields)
        cut = span and (min(span[0], len(text)), min(span[1], len(text)))
        # Only what the row says itself, so that all examples that it makes stay together.
        own = [name for name in values if _found(record, task.sources[name]) is not _ABSENT]
        content = tuple(values[name] for name in own)
        return Row(Example(text, label, user, "", answers, cut), content)

    def _read(self, fields: Mapping[str, str]) -> tuple[str, int, tuple[str, ...]]:
        """Text, label and answers of the example."""
        task = self._task
        if isinstance(task, GenerationTask):
            accepted = self._texts(task.label_names)
            if not self.mistakes and not all(answer.strip() for answer in accepted):
                self.mistakes.append(f"{task.label_names[0]!r} holds an empty answer")
            return task.render(fields), 0, tuple(accepted)
        if isinstance(task, ClassificationTask):
            return task.render(fields), self._label(task), ()
        if task.list_names:
            label, options = self._label_among(self._texts(task.list_names))
        else:
            label, options = self._label(task), task.options(fields)
        before, after = "", ""
        if not self.mistakes:
            try:
                before, after = task.around(fields)
            except TaskError as error:
                self.mistakes.append(str(error))
        if len(options) < 2 or not all(option.strip() for option in options):
            self.mistakes.append("the row has an empty candidate, or fewer than two")
        return before, label, tuple(option + after for option in options)

    def _label(self, task: ClassificationTask | ChoiceTask) -> int:
        try:
            return task.label_index(_found(self._part, task.label_names))
        except TaskError as error:
            self.mistakes.append(str(error))
            return 0

    def _label_among(self, candidates: Sequence[str]) -> tuple[int, list[str]]:
        """The first right candidate, and all candidates without any further right one."""
        right = self._texts(self._task.label_names)
        places = [index for index, candidate in enumerate(candidates) if candidate in right]
        if not places:
            self.mistakes.append(f"{' or '.join(map(repr, right))} is none of the candidates")
            return 0, list(candidates)
        kept = [c for index, c in enumerate(candidates) if index not in places[1:]]
        return places[0], kept

    def _replaced(self, name: str, value: str) -> str:
        known = self._task.replace.get(name)
        if known is None:
            return value
        if value not in known:
            self.mistakes.append(f"{name!r} is {value!r}; the task knows {', '.join(known)}")
        return known.get(value, value)

    def _text(self, names: Sequence[str]) -> str:
        return self._as_text(names[0], _found(self._part, names))

    def _texts(self, names: Sequence[str]) -> list[str]:
        """The different texts of a field that holds one or a list of them."""
        value = _found(self._part, names)
        values = value if isinstance(value, list) else [value]
        if not values:
            self.mistakes.append(f"{names[0]!r} is empty")
        return list(dict.fromkeys(self._as_text(names[0], one) for one in values))

    def _as_text(self, name: str, value: object) -> str:
        if not isinstance(value, str | int | float):
            kind = "null" if value is None else f"a {type(value).__name__}"
            what = "is missing" if value is _ABSENT else f"is {kind}, not text or a number"
            self.mistakes.append(f"{name!r} {what}")
            return ""
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.mistakes.append(f"{name!r} holds half of a UTF-16 surrogate pair")
        return text


def _found(record: Mapping[str, object], names: Sequence[str]) -> object:
    """The first of these fields that a row has; a dot reaches into an object or a list of them.

    An object by itself is nobody's value, so that the next name is tried.
    """
    found = _ABSENT
    for name in names:
        value = record[name] if name in record else _inside(record, name.split("."))
        if value is not _ABSENT:
            found = value
            if not isinstance(value, Mapping):
                break
    return found


def _inside(value: object, keys: Sequence[str]) -> object:
    for index, key in enumerate(keys):
        if isinstance(value, list):
            items = [_inside(item, keys[index:]) for item in value]
            return _ABSENT if _ABSENT in items else items
        if not isinstance(value, Mapping) or key not in value:
            return _ABSENT
        value = value[key]
    return value
