"""Metrics of predictions: confusion counts of labels, and agreement of decoded answers."""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from samara.shared.label_scores import Confusion
from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask, GenerationTask


def label_metric(task: ClassificationTask | ChoiceTask, confusion: Confusion) -> float:
    """Return a task's metric of confusion counts; NaN if there are no examples.

    The F1 of a label that is never true and never predicted is 0.
    """
    if task.metric == "accuracy" or not confusion.examples:
        return confusion.accuracy
    if task.metric == "macro-f1":
        return confusion.macro_f1
    if task.metric == "matthews":
        return confusion.matthews
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
