"""How good predictions are: counts of true against predicted labels, and agreement of answers."""

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
    """How often each label was predicted for each true label.

    Attributes:
        counts: int64 [labels, labels]; rows are true labels, columns predicted ones.
    """

    counts: NDArray[np.int64]

    @classmethod
    def of(cls, labels: NDArray[np.int64], predictions: NDArray[np.int64], classes: int) -> Self:
        """Count true labels against predictions, both int64 [examples] from 0 to classes − 1.

        Raises:
            ValueError: the lengths differ, or a label or prediction is out of range.
        """
        if labels.shape != predictions.shape:
            raise ValueError(f"{labels.size} labels for {predictions.size} predictions")
        for name, values in (("label", labels), ("prediction", predictions)):
            if values.size and not (values.min() >= 0 and values.max() < classes):
                raise ValueError(f"a {name} lies outside 0 to {classes - 1}")
        cells = np.bincount(labels * classes + predictions, minlength=classes * classes)
        return cls(cells.astype(np.int64).reshape(classes, classes))

    def __add__(self, other: "Confusion") -> "Confusion":
        """Add the counts of two sets of examples of one task."""
        if self.counts.shape != other.counts.shape:
            raise ValueError("confusions of different numbers of labels cannot be added")
        return Confusion(self.counts + other.counts)

    @property
    def examples(self) -> int:
        """How many examples were counted."""
        return int(self.counts.sum())

    @property
    def accuracy(self) -> float:
        """The share of examples predicted right; NaN where there is no example."""
        return int(self.counts.trace()) / self.examples if self.examples else math.nan

    @property
    def macro_f1(self) -> float:
        """The mean of the labels' F1 = 2·hits / (times true + times predicted).

        A label that is never true and never predicted has no F1 and is left out; a label with one
        of both and no hit has F1 = 0. NaN where there is no example.
        """
        found = [f1 for f1 in map(self.f1, range(len(self.counts))) if not math.isnan(f1)]
        return float(np.mean(found)) if found else math.nan

    def f1(self, label: int) -> float:
        """F1 of one label, 2·hits / (times true + times predicted); NaN if it is neither."""
        occurrences = int(self.counts[label].sum() + self.counts[:, label].sum())
        return 2 * int(self.counts[label, label]) / occurrences if occurrences else math.nan


def label_metric(task: ClassificationTask | ChoiceTask, confusion: Confusion) -> float:
    """The task's own metric of what was counted; NaN where there is no example.

    The F1 of a label that is never true and never predicted is 0.
    """
    if task.metric == "accuracy" or not confusion.examples:
        return confusion.accuracy
    if task.metric == "macro-f1":
        return confusion.macro_f1
    value = confusion.f1(task.label_index(task.positive))
    return 0.0 if math.isnan(value) else value


def normalized(answer: str) -> str:
    """An answer as SQuAD's evaluation compares it: lower case, no punctuation, no articles."""
    plain = "".join(letter for letter in answer.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 if an answer is one of the accepted ones, after `normalized`; otherwise 0."""
    return float(normalized(prediction) in map(normalized, answers))


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    """The best F1 of the words that an answer shares with an accepted one, after `normalized`.

    Where one of both has no words, it is 1 if neither has, and otherwise 0.
    """
    return max(
        _f1_of_words(normalized(prediction).split(), normalized(one).split()) for one in answers
    )


def answer_metric(
    task: GenerationTask, predictions: Sequence[str], answers: Sequence[Sequence[str]]
) -> float:
    """The task's own metric, as the mean over rows; NaN where there is none.

    Args:
        task: says which metric.
        predictions: an answer for every row.
        answers: the accepted ones of every row.
    """
    of_row: Callable[[str, Sequence[str]], float]
    of_row = exact_match if task.metric == "exact-match" else token_f1
    values = [of_row(own, accepted) for own, accepted in zip(predictions, answers, strict=True)]
    return float(np.mean(values)) if values else math.nan


def _f1_of_words(predicted: Sequence[str], true: Sequence[str]) -> float:
    if not (predicted and true):
        return float(predicted == true)
    shared = (Counter(predicted) & Counter(true)).total()
    return 2 * shared / (len(predicted) + len(true))
