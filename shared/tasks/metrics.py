"""Metrics of predictions: confusion counts of labels, and agreement of decoded answers."""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shared.tasks.kinds import ChoiceTask, ClassificationTask, GenerationTask


@dataclass(frozen=True, eq=False)
class Confusion:
    """Counts of predicted labels for each true label.

    Attributes:
        counts: int64 [labels, labels]; rows are true labels, columns predicted ones.
    """

    counts: NDArray[np.int64]

    @classmethod
    def from_predictions(
        cls, labels: NDArray[np.int64], predictions: NDArray[np.int64], classes: int
    ) -> Self:
        """Count pairs of labels and predictions, both int64 [examples] from 0 to classes − 1.

        Raises:
            ValueError: if the lengths differ, or a label or prediction is out of range.
        """
        if labels.shape != predictions.shape:
            raise ValueError(f"{labels.size} labels for {predictions.size} predictions")
        for name, values in (("label", labels), ("prediction", predictions)):
            if values.size and not (values.min() >= 0 and values.max() < classes):
                raise ValueError(f"a {name} lies outside 0 to {classes - 1}")
        cells = np.bincount(labels * classes + predictions, minlength=classes * classes)
        return cls(cells.astype(np.int64).reshape(classes, classes))

    def __add__(self, other: "Confusion") -> "Confusion":
        """Return the counts of two sets of examples of one task."""
        if self.counts.shape != other.counts.shape:
            raise ValueError("confusions of different numbers of labels cannot be added")
        return Confusion(self.counts + other.counts)

    @property
    def examples(self) -> int:
        """The number of examples."""
        return int(self.counts.sum())

    @property
    def accuracy(self) -> float:
        """The share of right predictions; NaN if there are no examples."""
        return int(self.counts.trace()) / self.examples if self.examples else math.nan

    @property
    def macro_f1(self) -> float:
        """The mean of the labels' F1 = 2·hits / (times true + times predicted).

        A label that is never true and never predicted has no F1 and is left out; one that is never
        predicted right has F1 = 0. NaN if there are no examples.
        """
        values = [f1 for f1 in map(self.f1, range(len(self.counts))) if not math.isnan(f1)]
        return float(np.mean(values)) if values else math.nan

    def f1(self, label: int) -> float:
        """Return a label's F1, 2·hits / (times true + times predicted); NaN if it is neither."""
        occurrences = int(self.counts[label].sum() + self.counts[:, label].sum())
        return 2 * int(self.counts[label, label]) / occurrences if occurrences else math.nan


def label_metric(task: ClassificationTask | ChoiceTask, confusion: Confusion) -> float:
    """Return a task's metric of confusion counts; NaN if there are no examples.

    The F1 of a label that is never true and never predicted is 0.
    """
    if task.metric == "accuracy" or not confusion.examples:
        return confusion.accuracy
    if task.metric == "macro-f1":
        return confusion.macro_f1
    value = confusion.f1(task.label_index(task.positive))
    return 0.0 if math.isnan(value) else value


def normalize_answer(answer: str) -> str:
    """Return an answer as SQuAD compares it: lower case, no punctuation, no articles."""
    plain = "".join(letter for letter in answer.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Return 1 if a normalized answer is one of the accepted ones, otherwise 0."""
    return float(normalize_answer(prediction) in map(normalize_answer, answers))


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    """Return the best F1 of the words of an answer and an accepted one, both normalized.

    If either has no words, it is 1 if neither has, and otherwise 0.
    """
    return max(
        _f1_of_words(normalize_answer(prediction).split(), normalize_answer(one).split())
        for one in answers
    )


def answer_metric(
    task: GenerationTask, predictions: Sequence[str], answers: Sequence[Sequence[str]]
) -> float:
    """Return a task's metric of decoded answers, the mean over rows; NaN if there are none.

    Args:
        task: task that names the metric.
        predictions: decoded answer of every row.
        answers: accepted answers of every row.
    """
    of_row: Callable[[str, Sequence[str]], float]
    of_row = exact_match if task.metric == "exact-match" else token_f1
    values = [of_row(one, accepted) for one, accepted in zip(predictions, answers, strict=True)]
    return float(np.mean(values)) if values else math.nan


def _f1_of_words(predicted: Sequence[str], true: Sequence[str]) -> float:
    if not (predicted and true):
        return float(predicted == true)
    shared = (Counter(predicted) & Counter(true)).total()
    return 2 * shared / (len(predicted) + len(true))
