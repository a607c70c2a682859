"""The three kinds of tasks: classification, choice and generation.

All kinds have a text that is filled from the fields of a row. They differ in the answer: a label
word, one of the row's own candidates, or a decoded text.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from shared.errors import TaskError
from shared.tasks.label_values import (
    LabelValues,
    check_label_values,
    find_label,
    optional_value_text,
    repeated_values,
)
from shared.tasks.templates import (
    TemplatePieces,
    field_names,
    parse_template,
    split_at_field,
    template_fields,
)

Span = tuple[int, int]
"""The first character of a part of a text, and the end behind its last one."""
USER_FIELD = "user"
"""The field that says whose a row is, where a task names no other."""


class _Task(BaseModel):
    """The fields and checks that all kinds share; wrong content raises a ValidationError."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    answer_field: ClassVar[str] = ""
    """The name in braces that marks the answer's position; not a field of a row."""

    name: str = Field(min_length=1)
    text: str
    label: str = "label"
    """The field with the right answer; ``label|answer`` is the first of both that a row has."""
    replace: dict[str, dict[str, str]] = {}
    """Replacements of a field's values in the text, by field."""
    cut: str = ""
    """The field of the text that is shortened where a row does not fit the model."""
    user: str = USER_FIELD
    """The field that says whose a row is; a row may lack it."""
    each: str = ""
    """A field with a list of objects; each of them becomes an example together with the row."""

    @field_validator("text")
    @classmethod
    def _text_reads_a_field(cls, template: str) -> str:
        if not set(template_fields(template)) - {cls.answer_field}:
            raise ValueError('names no field of a row; write for example "{text}"')
        return template

    @field_validator("label", "user")
    @classmethod
    def _is_a_field(cls, field: str) -> str:
        field_names(field)
        return field

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
        """Raise a ValueError if a valid text does not read a field."""
        if "text" in info.data:
            fields = [f for f in template_fields(info.data["text"]) if f != cls.answer_field]
            if field not in fields:
                raise ValueError(f"names {field}, and the text reads {', '.join(fields)}")

    @property
    def source_fields(self) -> dict[str, tuple[str, ...]]:
        """The row fields that the templates read, in order of appearance, with their names."""
        fields = template_fields(*self._templates())
        return {field: names for field, names in fields.items() if field != self.answer_field}

    @property
    def fields(self) -> tuple[str, ...]:
        """The row fields that the templates read, in order of appearance."""
        return tuple(self.source_fields)

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the field with the right answer."""
        return field_names(self.label)

    @property
    def user_names(self) -> tuple[str, ...]:
        """The names of the field that says whose a row is."""
        return field_names(self.user)

    @property
    def digest(self) -> str:
        """The SHA-256 of the task's content, in hexadecimal; it does not depend on the file."""
        # Tasks from before there were these keys keep their digests.
        later = {"user": USER_FIELD, "chat": False}
        kept = self.model_dump(exclude={k for k, v in later.items() if getattr(self, k, v) == v})
        content = json.dumps(kept, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()

    def render(self, fields: Mapping[str, str]) -> str:
        """Return the text with a row's fields filled in; braces inside a field are kept.

        Raises:
            TaskError: if a field that the text names is missing.
        """
        return self._fill(parse_template(self.text), fields)

    def cut_span(self, fields: Mapping[str, str]) -> Span | None:
        """Return the part of the rendered text that may be shortened, or None."""
        pieces = parse_template(self.text)
        for index, (literal, field) in enumerate(pieces):
            if self.cut and field is not None and field_names(field)[0] == self.cut:
                start = len(self._fill((*pieces[:index], (literal, None)), fields))
                return start, start + len(fields[self.cut])
        return None

    def _templates(self) -> tuple[str, ...]:
        return (self.text,)

    def _fill(self, pieces: TemplatePieces, fields: Mapping[str, str]) -> str:
        named = [(literal, field and field_names(field)[0]) for literal, field in pieces]
        required = dict.fromkeys(field for _, field in named if field)
        if missing := [field for field in required if field not in fields]:
            raise TaskError(
                f"task {self.name!r} reads {', '.join(missing)}, which the row lacks; "
                f"it has {', '.join(fields) or 'nothing'}"
            )
        return "".join(literal + (fields[field] if field else "") for literal, field in named)


class ClassificationTask(_Task):
    """A task that asks which of some label words, the same for all rows, is the answer."""

    question: str
    words: tuple[str, ...]
    labels: LabelValues
    kind: Literal["classification"] = "classification"
    metric: Literal["accuracy", "macro-f1", "f1"] = "accuracy"
    positive: Annotated[str | None, BeforeValidator(optional_value_text)] = Field(
        None, validate_default=True
    )
    """The value in the data that stands for the positive label of the metric f1."""

    @field_validator("question")
    @classmethod
    def _question_has_one_word(cls, template: str) -> str:
        fields = [field for _, field in parse_template(template) if field is not None]
        if fields != ["word"]:
            present = ", ".join(f"{{{field}}}" for field in fields) or "no field"
            raise ValueError(
                f"must hold {{word}} exactly once and no other field; it has {present}"
            )
        return template

    @field_validator("words")
    @classmethod
    def _words_differ(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        stripped = [word.strip() for word in words]
        if len(words) < 2:
            raise ValueError("needs at least two words, one per label")
        if "" in stripped:
            raise ValueError("holds an empty word")
        if repeated := repeated_values(stripped):
            raise ValueError(f"holds {', '.join(repeated)} more than once; words must differ")
        return words

    @field_validator("labels")
    @classmethod
    def _one_word_per_value(cls, labels: LabelValues, info: ValidationInfo) -> LabelValues:
        words = info.data.get("words")
        return check_label_values(labels, None if words is None else len(words), "words")

    @field_validator("positive")
    @classmethod
    def _positive_is_a_value(cls, value: str | None, info: ValidationInfo) -> str | None:
        metric, labels = info.data.get("metric"), info.data.get("labels")
        if metric == "f1" and value is None:
            raise ValueError('is missing; say of which label value the metric "f1" is')
        if metric in ("accuracy", "macro-f1") and value is not None:
            raise ValueError(f'is for the metric "f1", and the metric is {metric}; leave it out')
        if value is not None and labels is not None:
            values = [text for entry in labels for text in entry]
            if value not in values:
                raise ValueError(f"is {value!r}, which is none of labels: {', '.join(values)}")
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
        """Return the index of the word that a value stands for; values compare as text, "1" is 1.

        Raises:
            TaskError: if the value stands for no word.
        """
        return find_label(self.name, self.labels, value)

    def prompts(self) -> list[str]:
        """Return the question with each label word filled in, without surrounding spaces."""
        before, after = self._question_parts()
        return [f"{before}{word}{after}".strip() for word in self.words]

    def _question_parts(self) -> tuple[str, str]:
        before, after = split_at_field(self.question, "word")
        return self._fill(before, {}), self._fill(after, {})


class ChoiceTask(_Task):
    """A task that asks which of a row's candidates belongs into the text.

    The text behind a candidate is scored together with it.
    """

    answer_field: ClassVar[str] = "candidate"

    candidates: tuple[str, ...] | str
    """A template for each candidate, or in braces the field with a list of them."""
    kind: Literal["choice"]
    gap: str = Field("", validate_default=True)
    """The text that marks the candidate's position inside a row's field, instead of {candidate}."""
    labels: LabelValues = Field((), validate_default=True)
    """The values of the templates, by default 0, 1, …; empty where a field has the candidates."""
    metric: Literal["accuracy"] = "accuracy"

    @field_validator("candidates")
    @classmethod
    def _candidates_are_fields(cls, candidates: tuple[str, ...] | str) -> tuple[str, ...] | str:
        if isinstance(candidates, str):
            if [literal for literal, _ in parse_template(candidates)] != [""]:
                raise ValueError(
                    'as one text must be a field in braces that holds a list, such as "{entities}"'
                )
        elif len(candidates) < 2:
            raise ValueError("needs at least two candidates")
        elif fixed := [each for each in candidates if not template_fields(each)]:
            raise ValueError(
                f"holds {fixed[0]!r}, which reads no field of a row; a task whose answers are the "
                "same for all rows is a classification"
            )
        return candidates

    @field_validator("gap")
    @classmethod
    def _candidate_has_one_position(cls, gap: str, info: ValidationInfo) -> str:
        if "text" not in info.data:
            return gap
        count = [f for _, f in parse_template(info.data["text"])].count(cls.answer_field)
        if gap and count:
            raise ValueError("is one way to say where the candidate goes, and the text has another")
        if not gap and count != 1:
            raise ValueError(
                f"is missing, and the text holds {{candidate}} {count} times; write {{candidate}} "
                "once, or give as gap what marks its place inside a field"
            )
        return gap

    @field_validator("labels")
    @classmethod
    def _one_value_per_candidate(cls, labels: LabelValues, info: ValidationInfo) -> LabelValues:
        candidates = info.data.get("candidates")
        if isinstance(candidates, str) and labels:
            raise ValueError(
                "belongs to candidates that are listed here; where a field holds them, the label "
                "is the text of the right one"
            )
        if isinstance(candidates, tuple) and not labels:
            return tuple((str(index),) for index in range(len(candidates)))
        return check_label_values(
            labels, len(candidates) if isinstance(candidates, tuple) else None, "candidates"
        )

    @property
    def list_names(self) -> tuple[str, ...]:
        """The names of the field with a row's candidates; empty if the task lists them."""
        if isinstance(self.candidates, tuple):
            return ()
        (names,) = template_fields(self.candidates).values()
        return names

    def label_index(self, value: object) -> int:
        """Return the index of the candidate that a value stands for, where the task lists them.

        Raises:
            TaskError: if the value stands for no candidate.
        """
        return find_label(self.name, self.labels, value)

    def candidate_texts(self, fields: Mapping[str, str]) -> list[str]:
        """Return the candidates of a row, where the task lists them.

        Raises:
            TaskError: if a field that they name is missing.
        """
        return [self._fill(parse_template(template), fields) for template in self.candidates]

    def split_at_candidate(self, fields: Mapping[str, str]) -> tuple[str, str]:
        """Return the texts before and behind a row's candidate.

        Raises:
            TaskError: if a field is missing, or the gap does not occur exactly once.
        """
        if not self.gap:
            before, after = split_at_field(self.text, self.answer_field)
            return self._fill(before, fields), self._fill(after, fields)
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
    """A task whose answer is a text that the model decodes.

    A task of plain texts asks nothing: its text has no other field than ``{answer}``.
    """

    answer_field: ClassVar[str] = "answer"

    kind: Literal["generation"]
    tokens: int = Field(32, ge=1)
    """The number of tokens in an answer, at most."""
    chat: bool = False
    """True for chats: the text's field has messages, of which the last one is the answer."""
    metric: Literal["token-f1", "exact-match"] = "token-f1"

    @field_validator("text")
    @classmethod
    def _text_reads_a_field(cls, template: str) -> str:
        if template.strip() != "{answer}":  # which alone is a plain text
            super()._text_reads_a_field(template)
        return template.strip() if template.strip() == "{answer}" else template

    @field_validator("text")
    @classmethod
    def _answer_is_last(cls, template: str) -> str:
        fields = [field for _, field in parse_template(template) if field is not None]
        if fields.count(cls.answer_field) != 1 or fields[-1] != cls.answer_field:
            raise ValueError(
                "must hold {answer} once and behind all fields; what follows it ends the answer"
            )
        return template

    @property
    def is_plain_text(self) -> bool:
        """Return whether nothing of a row stands before an answer."""
        return not self.source_fields

    @property
    def stop(self) -> str:
        """The text that ends an answer; if empty, only the end-of-text token does."""
        return self._fill(split_at_field(self.text, self.answer_field)[1], {})

    def render(self, fields: Mapping[str, str]) -> str:
        """Return the text before the answer, with a row's fields filled in.

        Raises:
            TaskError: if a field that the text names is missing.
        """
        return self._fill(split_at_field(self.text, self.answer_field)[0], fields)


Task = ClassificationTask | ChoiceTask | GenerationTask
