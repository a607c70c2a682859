"""Tasks as data: what of a row is read, how its label is asked for, and in which words.

A task is a TOML file::

    name = "sst2"
    text = "{text}"                 # what is read; any field of a row, in braces
    question = " It was {word}."    # how the label is asked for; {word} exactly once
    words = ["terrible", "great"]   # one label word or phrase per label
    labels = [0, 1]                 # the value in the data, or list of values, that means word i

The shipped ones lie in ``prompts/`` and are loaded by name.
"""

import hashlib
import json
import re
import string
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from shared.errors import TaskError


class Task(BaseModel):
    """A text classification task in words. Built from wrong content, raises a ValidationError."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    text: str
    question: str
    words: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    """For each word the values in the data that mean it, as text."""

    @field_validator("text")
    @classmethod
    def _text_reads_a_field(cls, template: str) -> str:
        if not any(field is not None for _, field in _pieces(template)):
            raise ValueError('names no field of a row; write for example "{text}"')
        return template

    @field_validator("question")
    @classmethod
    def _question_has_one_word(cls, template: str) -> str:
        fields = [field for _, field in _pieces(template) if field is not None]
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

    @field_validator("labels", mode="before")
    @classmethod
    def _values_as_text(cls, labels: object) -> object:
        if not isinstance(labels, list | tuple):
            raise ValueError("must be a list with one value, or list of values, per word")
        entries = [entry if isinstance(entry, list | tuple) else [entry] for entry in labels]
        for value in (value for entry in entries for value in entry):
            if not isinstance(value, str | int):
                raise ValueError(f"holds {value!r}; a value is a string, an integer or a boolean")
        return [[_label_text(value) for value in entry] for entry in entries]

    @field_validator("labels")
    @classmethod
    def _one_word_per_value(
        cls, labels: tuple[tuple[str, ...], ...], info: ValidationInfo
    ) -> tuple[tuple[str, ...], ...]:
        mistakes = []
        words = info.data.get("words")
        if words is not None and len(words) != len(labels):
            mistakes.append(f"has {len(labels)} entries for {len(words)} words")
        if () in labels:
            mistakes.append(f"entry {labels.index(())} is empty")
        if repeated := _repeated([value for values in labels for value in values]):
            mistakes.append(f"holds {', '.join(repeated)} more than once")
        if mistakes:
            raise ValueError("; ".join(mistakes))
        return labels

    @property
    def fields(self) -> tuple[str, ...]:
        """The row fields that the text reads, each once, in order of appearance."""
        return tuple(dict.fromkeys(f for _, f in _pieces(self.text) if f is not None))

    @property
    def question_before_word(self) -> str:
        """The part of the question before the label word."""
        return self._question_parts()[0]

    @property
    def question_after_word(self) -> str:
        """The part of the question after the label word."""
        return self._question_parts()[1]

    @property
    def digest(self) -> str:
        """SHA-256 of the task's content, in hex: equal for equal tasks, whatever their file."""
        content = json.dumps(self.model_dump(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()

    def label_index(self, value: object) -> int:
        """Say which word a value of the data means; values compare as text, so "1" is 1.

        Raises:
            TaskError: no word is meant by this value.
        """
        text = _label_text(value)
        for index, values in enumerate(self.labels):
            if text in values:
                return index
        known = ", ".join(text for values in self.labels for text in values)
        raise TaskError(f"label {value!r} is unknown; task {self.name!r} knows {known}")

    def render(self, fields: Mapping[str, str]) -> str:
        """Fill a row's fields into the text; braces inside a field stay as they are.

        Raises:
            TaskError: a field that the text names is missing.
        """
        if missing := [field for field in self.fields if field not in fields]:
            raise TaskError(
                f"task {self.name!r} reads {', '.join(missing)}, which the row lacks; "
                f"it has {', '.join(fields) or 'nothing'}"
            )
        return "".join(
            literal if field is None else literal + fields[field]
            for literal, field in _pieces(self.text)
        )

    def prompts(self) -> list[str]:
        """Return the question with each label word filled in, without surrounding spaces."""
        before, after = self._question_parts()
        return [f"{before}{word}{after}".strip() for word in self.words]

    def _question_parts(self) -> tuple[str, str]:
        parts = [""]
        for literal, field in _pieces(self.question):
            parts[-1] += literal
            if field is not None:
                parts.append("")
        before, after = parts
        return before, after


def load_task(name_or_path: str) -> Task:
    """Load a shipped task by its name, or one of your own by the path of its TOML file.

    Raises:
        TaskError: there is no such task or file, or its content is wrong. All mistakes of a file
            are in one message.
    """
    shipped = {
        entry.name.removesuffix(".toml"): entry
        for entry in (resources.files("shared.tasks") / "prompts").iterdir()
        if entry.name.endswith(".toml")
    }
    source = shipped.get(name_or_path, Path(name_or_path))
    try:
        if not source.is_file():
            raise TaskError(
                f"{name_or_path!r}: neither a shipped task nor a file; "
                f"give one of {', '.join(sorted(shipped))} or the path of a TOML file"
            )
        toml = source.read_bytes().decode()
        return Task.model_validate(tomllib.loads(toml))
    except ValidationError as error:
        mistakes = [_mistake(name_or_path, toml, details) for details in error.errors()]
        raise TaskError("\n".join(mistakes)) from None
    except OSError as error:
        raise TaskError(f"{name_or_path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TaskError(f"{name_or_path}: not a TOML file in UTF-8: {error}") from error


def _pieces(template: str) -> list[tuple[str, str | None]]:
    """Cut a template into (literal text, field that follows it or None)."""
    pieces = []
    for literal, field, form, conversion in string.Formatter().parse(template):
        if field is not None and (form or conversion or not field):
            raise ValueError("braces hold a field's name and nothing else; write {{ for a brace")
        pieces.append((literal, field))
    return pieces


def _label_text(value: object) -> str:
    """Write a label value as text, a boolean as JSON and most CSV files do."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _repeated(values: list[str]) -> list[str]:
    return [value for value in dict.fromkeys(values) if values.count(value) > 1]


def _mistake(place: str, toml: str, details: ErrorDetails) -> str:
    """Say in one line where and what a mistake is that pydantic found."""
    key = str(details["loc"][0])
    for number, line in enumerate(toml.splitlines(), 1):
        if re.match(rf"""\s*(\[+{re.escape(key)}\]|["']?{re.escape(key)}["']?\s*=)""", line):
            place = f"{place}:{number}"
            break
    match details["type"]:
        case "extra_forbidden":
            what = f"unknown key; a task has {', '.join(Task.model_fields)}"
        case "missing":
            what = "is missing"
        case _:
            what = details["msg"].removeprefix("Value error, ")
    path = ".".join(str(part) for part in details["loc"])
    return f"{place}: {path}: {what}"
