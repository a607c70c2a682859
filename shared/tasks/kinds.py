"""The three kinds of tasks: classification, choice and generation.

Every kind has a text filled from the fields of a row. The kinds differ in the answer: a label word,
one of the row's candidates, or a decoded text.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from samara.shared.errors import TaskError
from samara.shared.tasks.base_task import BaseTask
from samara.shared.tasks.label_values import (
    LabelValues,
    are_equally_spaced,
    check_label_values,
    find_label,
    find_nearest_label,
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
"""Form of prompts for a causal LM: plain text, or the model's chat template.

The default ``auto`` is text after a BOS token.
"""
AUTO_FORM: Form = "auto"
PLAIN: Form = "plain"
CHAT: Form = "chat"
_WORD = "word"
"""Name in braces that marks the label word's position."""


def _stands_before(template: str, field: str, mark: str) -> bool:
    """Return whether a template reads a field before the mark; the mark occurs once."""
    before, _ = split_at_field(template, mark)
    return field in (field_names(name)[0] for _, name in before if name)


class AnsweredTask(BaseTask):
    """Base class of tasks with a choice among given answers: label words or candidates."""

    form: Form = AUTO_FORM
    """Form of prompts for a causal LM. Other models read only the text."""


class ClassificationTask(AnsweredTask):
    """A classification task: it asks which label word is the answer.

    All rows have the same label words. In a task with a question, the question contains the label
    word and follows the text. In a task without a question, the text itself contains the label
    word, and a masked LM can fill it in.
    """

    question: str = Field("", validate_default=True)
    words: tuple[str, ...]
    labels: LabelValues
    kind: Literal["classification"] = "classification"
    metric: Literal["accuracy", "macro-f1", "f1", "matthews", "pearson"] = "accuracy"
    positive: Annotated[str | None, BeforeValidator(optional_value_text)] = Field(
        None, validate_default=True
    )
    """Value in the data for the positive label of the metric f1."""

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
                f"must contain {{word}} exactly once and no other field, but it contains {present}"
            )
        return template

    @classmethod
    def _check_word_inside(cls, text: str, cut: str) -> None:
        """Raise a ValueError if a text without a question does not contain the word."""
        fields = [field for _, field in parse_template(text)]
        if fields.count(_WORD) != 1:
            raise ValueError(
                "is missing; write a question with {word} once, or, only for masked LMs, {word} "
                "once in the text"
            )
        if not set(template_fields(text)) - {_WORD}:
            raise ValueError(
                "is missing, and the text reads no field of a row except {word}; name a field in "
                "the text"
            )
        if cut and not _stands_before(text, cut, _WORD):
            raise ValueError(
                f"is missing, so cut must name a field before {{word}} in the text, but {cut} is "
                "not before {word}"
            )

    @field_validator("words")
    @classmethod
    def _words_differ(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        stripped = [word.strip() for word in words]
        if len(words) < 2:
            raise ValueError("needs at least two words, one per label")
        if "" in stripped:
            raise ValueError("contains an empty word; write a word for each label")
        if repeated := repeated_values(stripped):
            raise ValueError(f"contains {', '.join(repeated)} more than once; use different words")
        return words

    @field_validator("labels")
    @classmethod
    def _one_word_per_value(cls, labels: LabelValues, info: ValidationInfo) -> LabelValues:
        words = info.data.get("words")
        return check_label_values(labels, None if words is None else len(words), "words")

    @field_validator("metric")
    @classmethod
    def _compares_numbers(cls, metric: str, info: ValidationInfo) -> str:
        labels = info.data.get("labels")
        if metric == "pearson" and labels is not None and not are_equally_spaced(labels):
            raise ValueError(
                '"pearson" compares numbers; give labels one number per word, rising by equal steps'
            )
        return metric

    @field_validator("positive")
    @classmethod
    def _positive_is_a_value(cls, value: str | None, info: ValidationInfo) -> str | None:
        metric, labels = info.data.get("metric"), info.data.get("labels")
        if metric == "f1" and value is None:
            raise ValueError(
                'is missing; name the label value that the metric "f1" counts as positive'
            )
        if metric not in ("f1", None) and value is not None:
            raise ValueError(f'is only for the metric "f1", but the metric is {metric}; omit it')
        if value is not None and labels is not None:
            values = [text for entry in labels for text in entry]
            if value not in values:
                raise ValueError(f"is {value!r}, but must be one of labels: {', '.join(values)}")
        return value

    @property
    def word_is_inside(self) -> bool:
        """True if the task has no question, and the label word is inside the text."""
        return not self.question

    @property
    def source_fields(self) -> dict[str, tuple[str, ...]]:
        """All alternative names of each row field that the text reads, in order of appearance."""
        fields = super().source_fields
        return {k: v for k, v in fields.items() if not (self.word_is_inside and k == _WORD)}

    @property
    def question_before_word(self) -> str:
        """The literal text directly before the label word, from the question or the text."""
        return self._question_parts()[0]

    @property
    def question_after_word(self) -> str:
        """The part of the question after the label word; empty if there is no question."""
        return self._question_parts()[1]

    def render(self, fields: Mapping[str, str]) -> str:
        """Return the text with a row's fields filled in, up to the label word if it is inside.

        Raises:
            TaskError: if a field that the text names is missing.
        """
        if not self.word_is_inside:
            return super().render(fields)
        return self._fill(split_at_field(self.text, _WORD)[0], fields)

    def render_rest(self, fields: Mapping[str, str]) -> tuple[str, ...]:
        """Return the text after the label word as a tuple of one, or () if the task has a question.

        Raises:
            TaskError: if a field that this text names is missing.
        """
        if not self.word_is_inside:
            return ()
        return (self._fill(split_at_field(self.text, _WORD)[1], fields),)

    def label_index(self, value: object) -> int:
        """Return the index of the label word for a label value from the data.

        Values are compared as text. With the metric ``pearson`` the label with the nearest number
        is chosen.

        Raises:
            TaskError: if no word has this value; with ``pearson``, if the value is not a number
                between the lowest and the highest label.
        """
        find = find_nearest_label if self.metric == "pearson" else find_label
        return find(self.name, self.labels, value)

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
    """A task that asks which of a row's candidates belongs in the text.

    The text after a candidate is scored together with the candidate.
    """

    answer_field: ClassVar[str] = "candidate"

    candidates: tuple[str, ...] | str
    """Either one template per candidate, or the field with the list of candidates, in braces.
    """
    kind: Literal["choice"]
    gap: str = Field("", validate_default=True)
    """Text inside a row's field, such as ``@placeholder``, that marks the candidate's position.

    It replaces {candidate} in `text`.
    """
    labels: LabelValues = Field((), validate_default=True)
    """Label value of each template, by default 0, 1, …; empty if a field holds the candidates."""
    metric: Literal["accuracy"] = "accuracy"

    @field_validator("candidates")
    @classmethod
    def _candidates_are_fields(cls, candidates: tuple[str, ...] | str) -> tuple[str, ...] | str:
        if isinstance(candidates, str):
            if [literal for literal, _ in parse_template(candidates)] != [""]:
                raise ValueError(
                    'must be a list, or the field of a row\'s list in braces, such as "{entities}"'
                )
        elif len(candidates) < 2:
            raise ValueError("needs at least two candidates")
        elif fixed := [each for each in candidates if not template_fields(each)]:
            raise ValueError(
                f"contains {fixed[0]!r}, which reads no field of a row; for answers that are the "
                "same in all rows, write a classification"
            )
        return candidates

    @field_validator("gap")
    @classmethod
    def _candidate_has_one_position(cls, gap: str, info: ValidationInfo) -> str:
        if "text" not in info.data:
            return gap
        count = [f for _, f in parse_template(info.data["text"])].count(cls.answer_field)
        if gap and count:
            raise ValueError(
                "cannot be used, because {candidate} already marks the position in the text; omit "
                "this key"
            )
        if not gap and count != 1:
            raise ValueError(
                f"is missing, and the text contains {{candidate}} {count} times; write "
                "{candidate} once, or set gap to the text that marks its position in a field"
            )
        cut = info.data.get("cut", "")
        if not gap and cut and not _stands_before(info.data["text"], cut, cls.answer_field):
            raise ValueError(
                f"is missing, so cut must name a field before {{candidate}} in the text, but {cut} "
                "is not before {candidate}"
            )
        return gap

    @field_validator("labels")
    @classmethod
    def _one_value_per_candidate(cls, labels: LabelValues, info: ValidationInfo) -> LabelValues:
        candidates = info.data.get("candidates")
        if isinstance(candidates, str) and labels:
            raise ValueError(
                "is only for candidates that the task lists; omit this key, because the label in a "
                "row is the text of the right candidate"
            )
        if isinstance(candidates, tuple) and not labels:
            return tuple((str(index),) for index in range(len(candidates)))
        return check_label_values(
            labels, len(candidates) if isinstance(candidates, tuple) else None, "candidates"
        )

    @property
    def list_names(self) -> tuple[str, ...]:
        """The alternative names of the field with a row's candidates; () if there are templates."""
        if isinstance(self.candidates, tuple):
            return ()
        (names,) = template_fields(self.candidates).values()
        return names

    def label_index(self, value: object) -> int:
        """Return the index of the candidate for which a label value stands.

        Raises:
            TaskError: if no candidate has this value.
        """
        return find_label(self.name, self.labels, value)

    def candidate_texts(self, fields: Mapping[str, str]) -> list[str]:
        """Fill the task's candidate templates from a row, and return the candidates.

        Raises:
            TaskError: if a field of a template is missing.
        """
        return [self._fill(parse_template(template), fields) for template in self.candidates]

    def split_at_candidate(self, fields: Mapping[str, str]) -> tuple[str, str]:
        """Return the texts before and after a row's candidate.

        Raises:
            TaskError: if a field is missing, or the gap does not occur exactly once.
        """
        if not self.gap:
            before, after = split_at_field(self.text, self.answer_field)
            return self._fill(before, fields), self._fill(after, fields)
        parts = self.render(fields).split(self.gap)
        if len(parts) != 2:
            raise TaskError(
                f"the text contains the gap {self.gap!r} {len(parts) - 1} times, but task "
                f"{self.name!r} needs it once; correct the row"
            )
        return parts[0], parts[1]

    def _templates(self) -> tuple[str, ...]:
        listed = self.candidates if isinstance(self.candidates, tuple) else ()
        return (self.text, *listed)


class GenerationTask(BaseTask):
    """A task whose answers are free texts, which a model decodes.

    A task of plain texts has no question: its only field is ``{answer}``.
    """

    answer_field: ClassVar[str] = "answer"

    kind: Literal["generation"]
    tokens: int = Field(32, ge=1)
    """Largest number of tokens in an answer."""
    chat: bool = False
    """True if the text's field holds a chat, whose last message is the answer."""
    metric: Literal["token-f1", "exact-match"] = "token-f1"

    @field_validator("text")
    @classmethod
    def _text_reads_a_field(cls, template: str) -> str:
        if template.strip() != "{answer}":  # a plain text reads no field
            super()._text_reads_a_field(template)
        return template.strip() if template.strip() == "{answer}" else template

    @field_validator("text")
    @classmethod
    def _answer_is_last(cls, template: str) -> str:
        fields = [field for _, field in parse_template(template) if field is not None]
        if fields.count(cls.answer_field) != 1 or fields[-1] != cls.answer_field:
            raise ValueError(
                "must contain {answer} once, after all fields; the text after {answer} ends an "
                "answer"
            )
        return template

    @property
    def is_plain_text(self) -> bool:
        """True if the task has plain texts: its text is only ``{answer}``."""
        return not self.source_fields

    @property
    def stop(self) -> str:
        """Text that ends a decoded answer; if empty, only the end-of-text token ends it."""
        return self._fill(split_at_field(self.text, self.answer_field)[1], {})

    def render(self, fields: Mapping[str, str]) -> str:
        """Return the text before the answer, with a row's fields filled in.

        Raises:
            TaskError: if a field that the text names is missing.
        """
        return self._fill(split_at_field(self.text, self.answer_field)[0], fields)


Task = ClassificationTask | ChoiceTask | GenerationTask
