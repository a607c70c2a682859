"""What a task says, in each of its three kinds: classification, choice, generation.

All kinds read a text that is filled from the fields of a row. They differ in what may follow it: a
label word, one of the row's own candidates, or an answer in free words.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from shared.errors import TaskError
from shared.tasks.templates import Pieces, around, fields_of, names_of, pieces_of

Span = tuple[int, int]
"""First character and end of a part of a text."""


def _label_text(value: object) -> str:
    """Write a label value as text, a boolean as JSON and most CSV files do."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text_or_none(value: object) -> str | None:
    return None if value is None else _label_text(value)


def _values_as_text(labels: object) -> object:
    if not isinstance(labels, list | tuple):
        raise ValueError("must be a list with one value, or list of values, per answer")
    entries = [entry if isinstance(entry, list | tuple) else [entry] for entry in labels]
    for value in (value for entry in entries for value in entry):
        if not isinstance(value, str | int):
            raise ValueError(f"holds {value!r}; a value is a string, an integer or a boolean")
    return [[_label_text(value) for value in entry] for entry in entries]


Values = Annotated[tuple[tuple[str, ...], ...], BeforeValidator(_values_as_text)]
"""For each answer the values in the data that mean it, as text."""


class _Task(BaseModel):
    """What the kinds share. Built from wrong content, raises a ValidationError."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    place: ClassVar[str] = ""
    """What stands in braces where the answer goes; not a field of a row."""

    name: str = Field(min_length=1)
    text: str
    label: str = "label"
    """The field that says what is right; ``label|answer`` is the first that a row has."""
    replace: dict[str, dict[str, str]] = {}
    """For a field of the text, what its values become in it."""
    cut: str = ""
    """The field of the text that is shortened where a row is too long."""
    each: str = ""
    """A field with a list of objects, of which each makes an example together with the row."""

    @field_validator("text")
    @classmethod
    def _text_reads_a_field(cls, template: str) -> str:
        if not set(fields_of(template)) - {cls.place}:
            raise ValueError('names no field of a row; write for example "{text}"')
        return template

    @field_validator("label")
    @classmethod
    def _label_is_a_field(cls, label: str) -> str:
        names_of(label)
        return label

    @field_validator("replace")
    @classmethod
    def _replaced_fields_are_read(
        cls, replace: dict[str, dict[str, str]], info: ValidationInfo
    ) -> dict[str, dict[str, str]]:
        for field in replace:
            cls._check_read(field, info)
        return replace

    @field_validator("cut")
    @classmethod
    def _cut_field_is_read(cls, cut: str, info: ValidationInfo) -> str:
        if cut:
            cls._check_read(cut, info)
        return cut

    @classmethod
    def _check_read(cls, field: str, info: ValidationInfo) -> None:
        """Raise a ValueError if the text does not read a field; a wrong text is told elsewhere."""
        if "text" in info.data:
            known = [name for name in fields_of(info.data["text"]) if name != cls.place]
            if field not in known:
                raise ValueError(f"names {field}, and the text reads {', '.join(known)}")

    @property
    def sources(self) -> dict[str, tuple[str, ...]]:
        """The row fields that are filled in, in order of appearance, and each one's names."""
        read = fields_of(*self._templates())
        return {field: names for field, names in read.items() if field != self.place}

    @property
    def fields(self) -> tuple[str, ...]:
        """The row fields that are filled in, each once, in order of appearance."""
        return tuple(self.sources)

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the field that says what is right."""
        return names_of(self.label)

    @property
    def digest(self) -> str:
        """SHA-256 of the task's content, in hex: equal for equal tasks, whatever their file."""
        content = json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()

    def render(self, fields: Mapping[str, str]) -> str:
        """Fill a row's fields into the text; braces inside a field stay as they are.

        Raises:
            TaskError: a field that the text names is missing.
        """
        return self._filled(pieces_of(self.text), fields)

    def span(self, fields: Mapping[str, str]) -> Span | None:
        """Where in the rendered text the field lies that may be shortened, if one may."""
        pieces = pieces_of(self.text)
        for index, (literal, field) in enumerate(pieces):
            if self.cut and field is not None and names_of(field)[0] == self.cut:
                start = len(self._filled((*pieces[:index], (literal, None)), fields))
                return start, start + len(fields[self.cut])
        return None

    def _templates(self) -> tuple[str, ...]:
        return (self.text,)

    def _filled(self, pieces: Pieces, fields: Mapping[str, str]) -> str:
        wanted = [(literal, field and names_of(field)[0]) for literal, field in pieces]
        needed = dict.fromkeys(field for _, field in wanted if field)
        if missing := [field for field in needed if field not in fields]:
            raise TaskError(
                f"task {self.name!r} reads {', '.join(missing)}, which the row lacks; "
                f"it has {', '.join(fields) or 'nothing'}"
            )
        return "".join(literal + (fields[field] if field else "") for literal, field in wanted)


class ClassificationTask(_Task):
    """Which of some words, the same for all rows, follows the text and a question."""

    question: str
    words: tuple[str, ...]
    labels: Values
    kind: Literal["classification"] = "classification"
    metric: Literal["accuracy", "macro-f1", "f1"] = "accuracy"
    positive: Annotated[str | None, BeforeValidator(_text_or_none)] = Field(
        None, validate_default=True
    )
    """For the metric f1, a value in the data that means the label it is of."""

    @field_validator("question")
    @classmethod
    def _question_has_one_word(cls, template: str) -> str:
        fields = [field for _, field in pieces_of(template) if field is not None]
        if fields != ["word"]:
            found = ", ".join(f"{{{field}}}" for field in fields) or "no field"
            raise ValueError(f"must hold {{word}} exactly once and no other field; it has {found}")
        return template

    @field_validator("words")
    @classmethod
    def _words_differ(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        stripped = [word.strip() for word in words]
        if len(words) < 2:
            raise ValueError("needs at least two words, one per label")
        if "" in stripped:
            raise ValueError("holds an empty word")
        if repeated := _repeated(stripped):
            raise ValueError(f"holds {', '.join(repeated)} more than once; words must differ")
        return words

    @field_validator("labels")
    @classmethod
    def _one_word_per_value(cls, labels: Values, info: ValidationInfo) -> Values:
        words = info.data.get("words")
        return _checked_values(labels, None if words is None else len(words), "words")

    @field_validator("positive")
    @classmethod
    def _positive_is_a_value(cls, value: str | None, info: ValidationInfo) -> str | None:
        metric, labels = info.data.get("metric"), info.data.get("labels")
        if metric == "f1" and value is None:
            raise ValueError('is missing; say of which label value the metric "f1" is')
        if metric in ("accuracy", "macro-f1") and value is not None:
            raise ValueError(f'is for the metric "f1", and the metric is {metric}; leave it out')
        if value is not None and labels is not None:
            known = [text for values in labels for text in values]
            if value not in known:
                raise ValueError(f"is {value!r}, which is none of labels: {', '.join(known)}")
        return value

    @property
    def question_before_word(self) -> str:
        """The part of the question before the label word."""
        return self._question_parts()[0]

    @property
    def question_after_word(self) -> str:
        """The part of the question after the label word."""
        return self._question_parts()[1]

    def label_index(self, value: object) -> int:
        """Say which word a value of the data means; values compare as text, so "1" is 1.

        Raises:
            TaskError: no word is meant by this value.
        """
        return _label_index(self.name, self.labels, value)

    def prompts(self) -> list[str]:
        """Return the question with each label word filled in, without surrounding spaces."""
        before, after = self._question_parts()
        return [f"{before}{word}{after}".strip() for word in self.words]

    def _question_parts(self) -> tuple[str, str]:
        before, after = around(self.question, "word")
        return self._filled(before, {}), self._filled(after, {})


class ChoiceTask(_Task):
    """Which of a row's own candidates belongs into the text; what follows it counts with it."""

    place: ClassVar[str] = "candidate"

    candidates: tuple[str, ...] | str
    """A template per candidate, or in braces the field that holds a list of them."""
    kind: Literal["choice"]
    gap: str = Field("", validate_default=True)
    """What marks in a row's own text where the candidate goes, instead of {candidate}."""
    labels: Values = Field((), validate_default=True)
    """By default 0, 1, … for the templates; empty where a field holds the candidates."""
    metric: Literal["accuracy"] = "accuracy"

    @field_validator("candidates")
    @classmethod
    def _candidates_are_fields(cls, candidates: tuple[str, ...] | str) -> tuple[str, ...] | str:
        if isinstance(candidates, str):
            if [literal for literal, _ in pieces_of(candidates)] != [""]:
                raise ValueError(
                    'as one text must be a field in braces that holds a list, such as "{entities}"'
                )
        elif len(candidates) < 2:
            raise ValueError("needs at least two candidates")
        elif fixed := [each for each in candidates if not fields_of(each)]:
            raise ValueError(
                f"holds {fixed[0]!r}, which reads no field of a row; a task whose answers are the "
                "same for all rows is a classification"
            )
        return candidates

    @field_validator("gap")
    @classmethod
    def _one_place_for_the_candidate(cls, gap: str, info: ValidationInfo) -> str:
        if "text" not in info.data:
            return gap
        places = [field for _, field in pieces_of(info.data["text"])].count(cls.place)
        if gap and places:
            raise ValueError("is one way to say where the candidate goes, and the text has another")
        if not gap and places != 1:
            raise ValueError(
                f"is missing, and the text holds {{candidate}} {places} times; write {{candidate}} "
                "once, or give as gap what marks its place inside a field"
            )
        return gap

    @field_validator("labels")
    @classmethod
    def _one_value_per_candidate(cls, labels: Values, info: ValidationInfo) -> Values:
        candidates = info.data.get("candidates")
        if isinstance(candidates, str) and labels:
            raise ValueError(
                "belongs to candidates that are listed here; where a field holds them, the label "
                "is the text of the right one"
            )
        if isinstance(candidates, tuple) and not labels:
            return tuple((str(index),) for index in range(len(candidates)))
        return _checked_values(
            labels, len(candidates) if isinstance(candidates, tuple) else None, "candidates"
        )

    @property
    def list_names(self) -> tuple[str, ...]:
        """The names of the field that holds a row's candidates; empty if they are listed here."""
        if isinstance(self.candidates, tuple):
            return ()
        (names,) = fields_of(self.candidates).values()
        return names

    def label_index(self, value: object) -> int:
        """Say which candidate a value of the data means, where they are listed in the task.

        Raises:
            TaskError: no candidate is meant by this value.
        """
        return _label_index(self.name, self.labels, value)

    def options(self, fields: Mapping[str, str]) -> list[str]:
        """The candidates of a row, where they are listed in the task.

        Raises:
            TaskError: a field that they name is missing.
        """
        return [self._filled(pieces_of(template), fields) for template in self.candidates]

    def around(self, fields: Mapping[str, str]) -> tuple[str, str]:
        """The text before a row's candidate and the text behind it.

        Raises:
            TaskError: a field is missing, or the gap is not there exactly once.
        """
        if not self.gap:
            before, after = around(self.text, self.place)
            return self._filled(before, fields), self._filled(after, fields)
        parts = self.render(fields).split(self.gap)
        if len(parts) != 2:
            raise TaskError(
                f"the text holds the gap {self.gap!r} {len(parts) - 1} times; task {self.name!r} "
                "needs it once"
            )
        return parts[0], parts[1]

    def _templates(self) -> tuple[str, ...]:
        listed = self.candidates if isinstance(self.candidates, tuple) else ()
        return (self.text, *listed)


class GenerationTask(_Task):
    """What the answer is, in words that the model finds itself."""

    place: ClassVar[str] = "answer"

    kind: Literal["generation"]
    tokens: int = Field(32, ge=1)
    """Tokens of an answer, at most."""
    metric: Literal["token-f1", "exact-match"] = "token-f1"

    @field_validator("text")
    @classmethod
    def _answer_is_last(cls, template: str) -> str:
        fields = [field for _, field in pieces_of(template) if field is not None]
        if fields.count(cls.place) != 1 or fields[-1] != cls.place:
            raise ValueError(
                "must hold {answer} once and behind all fields; what follows it ends the answer"
            )
        return template

    @property
    def stop(self) -> str:
        """What follows an answer and so ends it; if empty, only the end of the text does."""
        return self._filled(around(self.text, self.place)[1], {})

    def render(self, fields: Mapping[str, str]) -> str:
        """Fill a row's fields into the text before the answer.

        Raises:
            TaskError: a field that the text names is missing.
        """
        return self._filled(around(self.text, self.place)[0], fields)


Task = ClassificationTask | ChoiceTask | GenerationTask


def _label_index(name: str, labels: Sequence[Sequence[str]], value: object) -> int:
    text = _label_text(value)
    for index, values in enumerate(labels):
        if text in values:
            return index
    known = ", ".join(text for values in labels for text in values)
    raise TaskError(f"label {value!r} is unknown; task {name!r} knows {known}")


def _checked_values(labels: Values, wanted: int | None, of: str) -> Values:
    mistakes = []
    if wanted is not None and wanted != len(labels):
        mistakes.append(f"has {len(labels)} entries for {wanted} {of}")
    if () in labels:
        mistakes.append(f"entry {labels.index(())} is empty")
    if repeated := _repeated([value for values in labels for value in values]):
        mistakes.append(f"holds {', '.join(repeated)} more than once")
    if mistakes:
        raise ValueError("; ".join(mistakes))
    return labels


def _repeated(values: list[str]) -> list[str]:
    return [value for value in dict.fromkeys(values) if values.count(value) > 1]
