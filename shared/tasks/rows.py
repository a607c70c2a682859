"""Rows of data, and the examples made from rows. All mistakes of a row are reported together."""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple

from samara.shared.errors import DataError, TaskError
from samara.shared.tasks.base_task import Span
from samara.shared.tasks.chats import read_chat
from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask, GenerationTask, Task

_ABSENT = object()
_JSON_KINDS = {type(None): "null", dict: "an object", list: "a list"}


@dataclass(frozen=True, slots=True)
class Example:
    """An example of a task, rendered as text.

    Attributes:
        text: text of the example, rendered by the task.
        label: index of the right answer, among the task's label words or in `answers`; 0 for a
            generation.
        user: name of the user who owns the example; empty if the data have no users.
        split: "train", "validation" or "test".
        answers: texts that can follow `text`. For a choice, every candidate with the text after it.
            For a generation, the accepted answers; the first is used for training. For a
            classification with the label word inside the text, the text after the word. For other
            classifications, empty.
        cut: part of the text that may be shortened; None if the task names no such part.
        source: values of the fields from which the text was made, without the task's wording. For a
            plain text, this is the text itself. Empty if the example was not read from a row.
    """

    text: str
    label: int
    user: str
    split: str
    answers: tuple[str, ...] = ()
    cut: Span | None = None
    source: tuple[str, ...] = field(default=(), compare=False, repr=False)


def data_fingerprint(examples: Iterable[Example]) -> str:
    """Return four hexadecimal digits that depend on all examples and on their order.

    Two bytes per client suffice to tell the data sets of runs apart, but not to recognize a text.
    """
    content = [[e.text, e.label, e.answers] for e in examples]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:4]


def hash_examples(examples: Iterable[Example]) -> str:
    """Return 32 hexadecimal digits that depend on all examples, but not on their order.

    The hash must stay on this machine. A person has few examples, and the hash would confirm a
    correct guess of them.
    """
    content = sorted(json.dumps([e.text, e.label, e.answers]) for e in examples)
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def hash_whole_examples(examples: Iterable[Example]) -> str:
    """Return a SHA-256 hash of all fields of examples, in hexadecimal."""
    whole = hashlib.sha256()
    for example in examples:
        whole.update(repr(example).encode())
    return whole.hexdigest()


class Row(NamedTuple):
    """An example with the field values of its row.

    Attributes:
        example: the example; its split is empty until the row is assigned to one.
        content: values of the row's own fields.
        time: time when the row was written, in seconds since 1970; 0 if the time was not requested.
    """

    example: Example
    content: tuple[str, ...]
    time: float = 0.0

    def random_key(self, purpose: str, seed: int) -> tuple[bytes, int]:
        """Return a sort key for a random order of rows that is the same on every machine.

        Rows with equal content are neighbours in this order, so they are rarely in different
        splits.
        """
        content = json.dumps([purpose, seed, self.example.user, *self.content])
        return hashlib.sha256(content.encode()).digest(), self.example.label


def required_fields(task: Task) -> list[tuple[str, ...]]:
    """Return the alternative names of each required field of a row."""
    listed = [task.list_names] if isinstance(task, ChoiceTask) and task.list_names else []
    names = [*task.source_fields.values(), *listed, task.label_names]
    return list(dict.fromkeys(names))


def describe_missing_fields(task: Task, present: Collection[str]) -> str:
    """Describe the required fields that the given columns lack, or return an empty text."""
    if task.each and task.each.split(".")[0] in present:
        return ""
    missing = [
        " or ".join(map(repr, names))
        for names in required_fields(task)
        if not any(name in present or name.split(".")[0] in present for name in names)
    ]
    if not missing:
        return ""
    return f"lacks {', '.join(missing)}; it has {', '.join(map(repr, present)) or 'nothing'}"


def is_unlabelled(record: Mapping[str, object], task: Task) -> bool:
    """Return whether a row has no answer (null, −1 or empty), as in test sets on the hub."""
    value = _field_value(record, task.label_names)
    if isinstance(task, GenerationTask) or not task.labels:
        return value is None or value in ("", [])
    return value is None or (value in (-1, "") and not any(str(value) in v for v in task.labels))


def read_rows(record: Mapping[str, object], task: Task) -> list[Row]:
    """Read the examples of a row: a single one, or one for each object in the task's field `each`.

    Raises:
        DataError: if the row is wrong. The message names all mistakes of the row.
    """
    if missing := describe_missing_fields(task, record):
        raise DataError(missing)
    rows, mistakes = [], []
    for prefix, part in _split_record(record, task):
        reader = _ExampleReader(task, part)
        row = reader.read(record)
        mistakes += [prefix + mistake for mistake in reader.mistakes]
        if row is not None:
            rows.append(row)
    if mistakes:
        raise DataError("; ".join(mistakes))
    return rows


def read_question(record: Mapping[str, object], task: Task) -> tuple[Example, tuple[str, ...]]:
    """Read a row without an answer as an example. Its label has no meaning.

    Args:
        record: fields of the row that the task reads.
        task: classification, or choice with a template per candidate.

    Returns:
        The example, and the answers to compare: label words or candidates.

    Raises:
        DataError: if the row is wrong. The message names all mistakes of the row.
        TaskError: if the possible answers are unknown without the row's right answer.
    """
    if isinstance(task, GenerationTask) or not task.labels:
        raise TaskError(
            f"task {task.name!r} is a {task.kind} without listed labels; only a classification, or "
            "a choice whose candidates the task lists, has labels to compare"
        )
    reader = _ExampleReader(task, record, labelled=False)
    row = reader.read(record)
    if row is None:
        raise DataError("; ".join(reader.mistakes))
    if isinstance(task, ClassificationTask):
        return row.example, tuple(word.strip() for word in task.words)
    return row.example, tuple(answer.strip() for answer in row.example.answers)


def read_prompt(record: Mapping[str, object], task: GenerationTask) -> Example:
    """Read a prompt without an answer as an example of a generation task.

    Args:
        record: fields of the row that the task reads.
        task: task of prompts and answers, not of chats.

    Raises:
        DataError: if the row is wrong. The message names all mistakes of the row.
    """
    reader = _ExampleReader(task, record, labelled=False)
    row = reader.read(record)
    if row is None:
        raise DataError("; ".join(reader.mistakes))
    return row.example


def _split_record(
    record: Mapping[str, object], task: Task
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield each example's prefix for messages, such as ``questions 2: ``, and its fields."""
    items = _field_value(record, (task.each,)) if task.each else _ABSENT
    if items is _ABSENT:
        yield "", record
        return
    if not (isinstance(items, list) and items and all(isinstance(i, Mapping) for i in items)):
        raise DataError(f"{task.each!r} is not a list of objects, one for each example")
    for number, item in enumerate(items):
        yield f"{task.each} {number}: ", {**record, **item}


class _ExampleReader:
    """A reader of one example that collects all mistakes instead of raising the first.

    Attributes:
        mistakes: mistakes found so far.
    """

    def __init__(self, task: Task, part: Mapping[str, object], labelled: bool = True) -> None:
        self._task, self._part, self._labelled = task, part, labelled
        self.mistakes: list[str] = []

    def read(self, record: Mapping[str, object]) -> Row | None:
        """Return the example as a row, or None if there are mistakes."""
        task = self._task
        if isinstance(task, GenerationTask) and task.chat:
            return self._read_chat(task)
        values = {name: self._text(names) for name, names in task.source_fields.items()}
        fields = {name: self._replace(name, value) for name, value in values.items()}
        user = self._owner()
        text, label, answers = self._render(fields)
        if values and not self.mistakes and not any(value.strip() for value in values.values()):
            self.mistakes.append("the text is empty")
        if self.mistakes:
            return None
        span = task.cut_span(fields)
        cut = span and (min(span[0], len(text)), min(span[1], len(text)))
        # The content has only the row's own fields, so that all examples of a row get into one
        # split.
        names = [
            name for name in values if _field_value(record, task.source_fields[name]) is not _ABSENT
        ]
        content = tuple(values[name] for name in names) if values else answers
        source = tuple(values[name] for name in _text_names(task, values, names)) or answers
        return Row(Example(text, label, user, "", answers, cut, source), content)

    def _owner(self) -> str:
        owner = _field_value(self._part, self._task.user_names)
        absent = owner is None or owner is _ABSENT
        return "" if absent else self._as_text(self._task.user_names[0], owner)

    def _read_chat(self, task: GenerationTask) -> Row | None:
        user = self._owner()
        name = task.label_names[0]
        try:
            text, answer = read_chat(_field_value(self._part, task.label_names), name)
        except DataError as error:
            self.mistakes.append(str(error))
        if self.mistakes:
            return None
        return Row(Example(text, 0, user, "", (answer,), source=(text,)), (text,))

    def _render(self, fields: Mapping[str, str]) -> tuple[str, int, tuple[str, ...]]:
        """Return text, label and answers of the example."""
        task = self._task
        if isinstance(task, GenerationTask):
            accepted = self._texts(task.label_names) if self._labelled else []
            if not self.mistakes and not all(answer.strip() for answer in accepted):
                self.mistakes.append(f"{task.label_names[0]!r} holds an empty answer")
            return task.render(fields), 0, tuple(accepted)
        if isinstance(task, ClassificationTask):
            return task.render(fields), self._label(task), task.render_rest(fields)
        if task.list_names:
            label, options = self._find_label(self._texts(task.list_names))
        else:
            label = self._label(task)
            options = task.candidate_texts(fields)
        before, after = "", ""
        if not self.mistakes:
            try:
                before, after = task.split_at_candidate(fields)
            except TaskError as error:
                self.mistakes.append(str(error))
        if len(options) < 2 or not all(option.strip() for option in options):
            self.mistakes.append("the row has an empty candidate, or fewer than two candidates")
        return before, label, tuple(option + after for option in options)

    def _label(self, task: ClassificationTask | ChoiceTask) -> int:
        if not self._labelled:
            return 0
        try:
            return task.label_index(_field_value(self._part, task.label_names))
        except TaskError as error:
            self.mistakes.append(str(error))
            return 0

    def _find_label(self, candidates: Sequence[str]) -> tuple[int, list[str]]:
        """Return the label's index in the candidates, and the candidates.

        The label is the first right candidate. Other right candidates are left out.
        """
        right = self._texts(self._task.label_names)
        indices = [index for index, candidate in enumerate(candidates) if candidate in right]
        if not indices:
            self.mistakes.append(f"{' or '.join(map(repr, right))} is not one of the candidates")
            return 0, list(candidates)
        kept = [c for index, c in enumerate(candidates) if index not in indices[1:]]
        return indices[0], kept

    def _replace(self, name: str, value: str) -> str:
        replacements = self._task.replace.get(name)
        if replacements is None:
            return value
        if value not in replacements:
            self.mistakes.append(
                f"{name!r} is {value!r}, but the task knows only {', '.join(replacements)}"
            )
        return replacements.get(value, value)

    def _text(self, names: Sequence[str]) -> str:
        return self._as_text(names[0], _field_value(self._part, names))

    def _texts(self, names: Sequence[str]) -> list[str]:
        """Return the distinct texts of a field that holds a text or a list of texts."""
        value = _field_value(self._part, names)
        values = value if isinstance(value, list) else [value]
        if not values:
            self.mistakes.append(f"{names[0]!r} is empty")
        return list(dict.fromkeys(self._as_text(names[0], one) for one in values))

    def _as_text(self, name: str, value: object) -> str:
        if not isinstance(value, str | int | float):
            kind = _JSON_KINDS.get(type(value), f"a {type(value).__name__}")
            what = "is missing" if value is _ABSENT else f"is {kind}, not text or a number"
            self.mistakes.append(f"{name!r} {what}")
            return ""
        if isinstance(value, float) and not isfinite(value):
            self.mistakes.append(f"{name!r} is {value}, not text or a number")
            return ""
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.mistakes.append(
                f"{name!r} contains half of a UTF-16 surrogate pair; correct the text"
            )
        if "\0" in text:
            self.mistakes.append(
                f"{name!r} contains a NUL, the character with code 0, at position "
                f"{text.index(chr(0)) + 1}; delete it, or get the data from their source again"
            )
        return text


def _text_names(task: Task, values: Mapping[str, str], own: Sequence[str]) -> list[str]:
    """Return the fields that an example's text reads, without fields that only candidates read.

    If some of these fields belong to the row itself, only these are returned, so that all examples
    of a row get into the same split.

    Args:
        task: task of the row.
        values: values of all fields that the task reads.
        own: the fields of the row itself, without those of the object in `each`.
    """
    read = [name for name in values if name in task.text_fields]
    return [name for name in read if name in own] or read


def _field_value(record: Mapping[str, object], names: Sequence[str]) -> object:
    """Return a row's value under the first of a field's names that it has, or `_ABSENT`.

    A dot in a name leads into an object or a list of objects. A name that leads to an object
    instead of a value is skipped.
    """
    result: object = _ABSENT
    for name in names:
        value = record[name] if name in record else _nested_value(record, name.split("."))
        if value is not _ABSENT:
            result = value
            if not isinstance(value, Mapping):
                break
    return result


def _nested_value(value: object, keys: Sequence[str]) -> object:
    for index, key in enumerate(keys):
        if isinstance(value, list):
            items = [_nested_value(item, keys[index:]) for item in value]
            return _ABSENT if _ABSENT in items else items
        if not isinstance(value, Mapping) or key not in value:
            return _ABSENT
        value = value[key]
    return value
