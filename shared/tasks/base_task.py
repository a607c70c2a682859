"""The base class of all kinds of tasks: a checked template that is filled from a row's fields."""

import hashlib
import json
from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from samara.shared.errors import TaskError
from samara.shared.tasks.templates import (
    TemplatePieces,
    field_names,
    parse_template,
    template_fields,
)

Span = tuple[int, int]
"""Start and end of a part of a text, in characters; the end is exclusive."""
USER_FIELD = "user"
"""Default name of the field with a row's user."""


class BaseTask(BaseModel):
    """The settings that all kinds of tasks share. Invalid content raises a ValidationError."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    answer_field: ClassVar[str] = ""
    """Name in braces that marks the answer's position in a text; rows have no such field."""

    name: str = Field(min_length=1)
    text: str
    label: str = "label"
    """Field with the right answer; ``label|answer`` falls back to answer if label is absent."""
    replace: dict[str, dict[str, str]] = {}
    """For each field, a replacement for each of its values in the text."""
    cut: str = ""
    """Field whose value is shortened if the text is too long for the model."""
    user: str = USER_FIELD
    """Field with the user of a row; a row may lack it."""
    each: str = ""
    """Field with a list of objects. Each object and the row's other fields become an example."""

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
        """Raise a ValueError if the task's text does not read a field."""
        if "text" in info.data:
            fields = [f for f in template_fields(info.data["text"]) if f != cls.answer_field]
            if field not in fields:
                raise ValueError(f"names {field}, but the text reads only {', '.join(fields)}")

    @property
    def source_fields(self) -> dict[str, tuple[str, ...]]:
        """All alternative names of each row field that the templates read, in order."""
        fields = template_fields(*self._templates())
        return {field: names for field, names in fields.items() if field != self.answer_field}

    @property
    def fields(self) -> tuple[str, ...]:
        """The row fields that the templates read, in order of appearance."""
        return tuple(self.source_fields)

    @property
    def text_fields(self) -> tuple[str, ...]:
        """The row fields that `text` itself reads, in order of appearance."""
        read = template_fields(self.text)
        return tuple(field for field in self.fields if field in read)

    @property
    def label_names(self) -> tuple[str, ...]:
        """The alternative names of the field with the right answer."""
        return field_names(self.label)

    @property
    def user_names(self) -> tuple[str, ...]:
        """The alternative names of the field with a row's user."""
        return field_names(self.user)

    @property
    def digest(self) -> str:
        """The SHA-256 of the task's content, but not of its file's path, in hexadecimal."""
        # Newer keys are left out at their default, so that the digests of older tasks stay equal.
        later = {"user": USER_FIELD, "chat": False, "form": "auto"}
        kept = self.model_dump(exclude={k for k, v in later.items() if getattr(self, k, v) == v})
        content = json.dumps(kept, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()

    def render(self, fields: Mapping[str, str]) -> str:
        """Return the text with a row's fields filled in. Braces in a field's value are kept.

        Raises:
            TaskError: if a field that the text names is missing.
        """
        return self._fill(parse_template(self.text), fields)

    def cut_span(self, fields: Mapping[str, str]) -> Span | None:
        """Return the span of the rendered text that may be shortened, or None if there is none."""
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
                f"task {self.name!r} reads {', '.join(missing)}, but the row has only "
                f"{', '.join(fields) or 'no fields'}; correct the row or the task"
            )
        return "".join(literal + (fields[field] if field else "") for literal, field in named)
