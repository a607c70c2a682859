"""The three kinds of tasks: classification, choice and generation.

All kinds have a text that is filled from the fields of a row. They differ in the answer: a label
word, one of the row's own candidates, or a decoded text.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from samara.shared.errors import TaskError
from samara.shared.tasks.base_task import BaseTask
from samara.shared.tasks.label_values import (
    LabelValues,
    check_label_values,
    find_label,
    optional_value_text,
    repeated_values,
)
from samara.shared.tasks.templates import (
    field_names,
    parse_template,
    split_at_field,
    template_fields,
)

Form = Literal["auto", "plain", "chat"]
"""The way a causal LM is asked: by a text, or its own chat template; ``auto`` leaves it open."""
AUTO_FORM: Form = "auto"
PLAIN: Form = "plain"
CHAT: Form = "chat"
_WORD = "word"
"""The name in braces that marks the label word's position."""


def _stands_before(template: str, field: str, mark: str) -> bool:
    """Return whether a template reads a field before a mark, which it holds once."""
    before, _ = split_at_field(template, mark)
    return field in (field_names(name)[0] for _, name in before if name)


class AnsweredTask(BaseTask):
    """A task whose answer is one of several that are given: a label word, or a candidate."""

    form: Form = AUTO_FORM
    """The way a causal LM is asked; other models have no other than to read the text."""


class ClassificationTask(AnsweredTask):
    """A task that asks which of some label words, the same for all rows, is the answer.

    The word stands in the question behind the text, or, without a question, inside the text, where
    a masked LM can fill it in.
    """

    question: str = Field("", validate_default=True)
    words: tuple[str, ...]
    labels: LabelValues
    kind: Literal["classification"] = "classification"
    metric: Literal["accuracy", "macro-f1", "f1", "matthews"] = "accuracy"
    positive: Annotated[str | None, BeforeValidator(optional_value_text)] = Field(
        None, validate_default=True
    )
    """The value in the data that stands for the positive label of the metric f1."""

    @field_validator("question")
    @classmethod
    def _question_has_one_word(cls, template: str, info: ValidationInfo) -> str:
        if not template:
            if "text" in info.data:
                cls._check_word_inside(info.data["text"], info.data.get("cut", ""))
            return template
        fields = [field for _, field in parse_template(template) if field is not None]
        if fields != [_WORD]:
            present = ", ".join(f"{{{field}}}" for field in fields) or "no field"
            raise ValueError(
                f"must hold {{word}} exactly once and no other field; it has {present}"
            )
        return template

    @classmethod
    def _check_word_inside(cls, text: str, cut: str) -> None:
        """Raise a ValueError if a text that no question follows does not hold the word."""
        fields = [field for _, field in parse_template(text)]
        if fields.count(_WORD) != 1:
            raise ValueError(
                "is missing; it holds {word} once, or the text does, for masked LMs alone"
            )
        if not set(template_fields(text)) - {_WORD}:
            raise ValueError("is missing, and the text reads no field of a row but {word}")
        if cut and not _stands_before(text, cut, _WORD):
            raise ValueError(f"is missing, so that cut names a field before {{word}}, not {cut}")

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
        if metric in ("accuracy", "macro-f1", "matthews") and value is not None:
            raise ValueError(f'is for the metric "f1", and the metric is {metric}; leave it out')
        if value is not None and labels is not None:
            values = [text for entry in labels for text in entry]
            if value not in values:
                raise ValueError(f"is {value!r}, which is none of labels: {', '.join(values)}")
        return value

    @property
    def word_is_inside(self) -> bool:
        """True if the label word stands inside the text, and no question follows."""
        return not self.question

    @property
    def source_fields(self) -> dict[str, tuple[str, ...]]:
        """The row fields that the text reads, in order of appearance, with their names."""
        fields = super().source_fields
        return {k: v for k, v in fields.items() if not (self.word_is_inside and k == _WORD)}

    @property
    def question_before_word(self) -> str:
        """The part of the question before the label word; of a text without one, its literal."""
        return self._question_parts()[0]

    @property
    def question_after_word(self) -> str:
        """The part of the question after the label word; empty without a question."""
        return self._question_parts()[1]

    def render(self, fields: Mapping[str, str]) -> str:
        """Return the text with a row's fields filled in; without a question, that before the word.

        Raises:
            TaskError: if a field that the text names is missing.
        """
        if not self.word_is_inside:
            return super().render(fields)
        return self._fill(split_at_field(self.text, _WORD)[0], fields)

    def render_rest(self, fields: Mapping[str, str]) -> tuple[str, ...]:
        """Return the text behind a word that stands inside the text; nothing with a question.

        Raises:
            TaskError: if a field that it names is missing.
        """
        if not self.word_is_inside:
            return ()
        return (self._fill(split_at_field(self.text, _WORD)[1], fields),)

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
        if self.word_is_inside:
            return split_at_field(self.text, _WORD)[0][-1][0], ""
        before, after = split_at_field(self.question, _WORD)
        return self._fill(before, {}), self._fill(after, {})


class ChoiceTask(AnsweredTask):
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
        cut = info.data.get("cut", "")
        if not gap and cut and not _stands_before(info.data["text"], cut, cls.answer_field):
            raise ValueError(
                f"is missing, so that cut names a field before {{candidate}}, not {cut}"
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


class GenerationTask(BaseTask):
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
