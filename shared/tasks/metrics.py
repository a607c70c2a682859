"""Metrics of predicted labels, from confusion counts, and of decoded answers, from their texts."""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask, GenerationTask
from samara.shared.tasks.label_scores import Confusion


def label_metric(task: ClassificationTask | ChoiceTask, confusion: Confusion) -> float:
    """Compute a task's metric from confusion counts; NaN if there are no examples.

    The metric f1 is 0 if its label is never true and never predicted.
    """
    if task.metric == "accuracy" or not confusion.examples:
        return confusion.accuracy
    if task.metric == "macro-f1":
        return confusion.macro_f1
    if task.metric == "matthews":
        return confusion.matthews
    if task.metric == "pearson":
        return confusion.pearson
    value = confusion.f1(task.label_index(task.positive))
    return 0.0 if math.isnan(value) else value


def normalize_answer(answer: str) -> str:
    """Normalize an answer as SQuAD does: lower case, no punctuation, no articles."""
    plain = "".join(letter for letter in answer.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Return 1 if a predicted answer equals an accepted answer after normalization, otherwise 0."""
    return float(normalize_answer(prediction) in map(normalize_answer, answers))


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    """Return the highest word F1 of a predicted answer with any accepted answer, all normalized.

    F1 is 1 if neither answer has words, and 0 if only one of the two has words.
    """
    return max(
        _f1_of_words(normalize_answer(prediction).split(), normalize_answer(one).split())
        for one in answers
    )


def answer_metric(
    task: GenerationTask, predictions: Sequence[str], answers: Sequence[Sequence[str]]
) -> float:
    """Compute a task's metric of decoded answers, averaged over rows; NaN without rows.

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
