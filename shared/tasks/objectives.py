"""Objectives: functions that reduce the scores or answers of a perturbation to its loss.

A zeroth-order step needs no derivative of the loss, so a metric can be trained directly (MeZO,
section 3.3): the loss is minus the metric.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import TaskError
from samara.shared.extensions import extension
from samara.shared.label_scores import Confusion, cross_entropy
from samara.shared.profiled_loss import profiled_cross_entropy
from samara.shared.tasks.kinds import ChoiceTask, GenerationTask, Task
from samara.shared.tasks.metrics import answer_metric, label_metric

CROSS_ENTROPY = "cross-entropy"
SUMMED_CROSS_ENTROPY = "summed-cross-entropy"
PROFILED = "profiled-cross-entropy"
METRIC = "metric"
OBJECTIVES = (CROSS_ENTROPY, PROFILED, SUMMED_CROSS_ENTROPY, METRIC)
"""The built-in objectives of a federation."""
ObjectiveName = Literal["cross-entropy", "profiled-cross-entropy", "likelihood", "metric"]
Objective = Callable[[NDArray[np.float32], NDArray[np.int64]], NDArray[np.float64]]
"""Reduces scores float32 [P, rows, width] and labels int64 [rows] to losses float64 [P].

The scores of a row are compared with each other: they may have any number in common."""


def negative_log_likelihood(
    scores: NDArray[np.float32], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return each perturbation's mean over its rows of −scores[label].

    The other answers' scores are not used. In a causal LM this is the loss over the whole
    vocabulary per token of the right answer: teacher forcing (MeZO, appendix E.4; P-RGE, appendix
    A.3).

    Args:
        scores: float32 [P, rows, width], log-likelihoods per token; at least one row.
        labels: int64 [rows]; all 0 in a generation task.

    Returns:
        float64 [P], in nats.
    """
    right = scores[:, np.arange(len(labels)), labels]
    losses: NDArray[np.float64] = np.mean(-right.astype(np.float64), axis=1)
    return losses


def minus_label_metric(task: Task) -> Objective:
    """Return the objective that is minus a task's metric, accuracy or an F1, of the best scores.

    Perturbations with equal predictions have equal losses. The loss is NaN if the score of a true
    label is not finite, or any score is NaN.

    Raises:
        TaskError: if the task is a generation, whose metric needs decoded answers.
    """
    if isinstance(task, GenerationTask):
        raise TaskError(
            f"task {task.name!r} is a generation, whose metric is of decoded answers, not of "
            "scores; train the likelihood, or use minus_answer_metric"
        )

    def losses(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
        width = scores.shape[2]
        values = [
            label_metric(task, Confusion.from_predictions(labels, one.argmax(axis=1), width))
            for one in scores
        ]
        right = scores[:, np.arange(len(labels)), labels]
        sound = np.isfinite(right).all(axis=1) & ~np.isnan(scores).any(axis=(1, 2))
        return np.where(sound, -np.array(values), np.nan)

    return losses


def minus_answer_metric(
    task: GenerationTask, predictions: Sequence[Sequence[str]], answers: Sequence[Sequence[str]]
) -> NDArray[np.float64]:
    """Return minus a task's metric, exact match or token F1, of decoded answers.

    Args:
        task: task that names the metric.
        predictions: decoded answer of every row, for each of P perturbations.
        answers: accepted answers of every row.

    Returns:
        float64 [P].
    """
    return np.array([-answer_metric(task, one, answers) for one in predictions])


def training_objective(name: str, task: Task) -> Objective:
    """Return the objective of a federation's steps.

    Args:
        name: one of `OBJECTIVES`, or a registered one. In a generation the cross-entropy is that of
            each token of an answer over the vocabulary; scores that are sums give their sum.
        task: task of the run; the metric of a generation is that of decoded answers, which
            `minus_answer_metric` reduces.

    Raises:
        TaskError: if the task has no such objective.
        ConfigError: if this machine does not have it.
    """
    if name == METRIC:
        return minus_label_metric(task)
    if name == PROFILED:
        return _profiled(task)
    if name in OBJECTIVES:
        return negative_log_likelihood if isinstance(task, GenerationTask) else cross_entropy
    objective: Objective = extension("objective", name)
    return objective


def _profiled(task: Task) -> Objective:
    """Return the profiled cross-entropy of a task whose rows choose between the same labels.

    Raises:
        TaskError: if they do not.
    """
    if isinstance(task, GenerationTask):
        reason = "is a generation, which has no labels that a shift could be of"
    elif isinstance(task, ChoiceTask) and task.list_names:
        reason = "has candidates that differ from row to row, so that a shift of them means nothing"
    else:
        return profiled_cross_entropy
    raise TaskError(f"task {task.name!r} {reason}; set objective to {CROSS_ENTROPY}")


def decodes_answers(name: str, task: Task) -> bool:
    """Return whether the objective of a federation's steps is a metric of decoded answers.

    Raises:
        TaskError: if these are plain texts, which answer nothing.
    """
    if name != METRIC or not isinstance(task, GenerationTask):
        return False
    if task.is_plain_text:
        raise TaskError(
            f"task {task.name!r} has plain texts, which answer no prompt, so that there is no "
            "metric to train; set objective to cross-entropy"
        )
    return True


def objective_for(task: Task, goal: ObjectiveName) -> Objective:
    """Return the objective of a name for a task.

    Args:
        task: a task of any kind.
        goal: ``cross-entropy`` over the labels or candidates, or what a shift of all answers leaves
            of it, ``profiled-cross-entropy``; ``likelihood`` of the right answer, which generation
            tasks have too; or minus the task's ``metric``.

    Raises:
        TaskError: if tasks of this kind have no such objective.
    """
    if goal == "likelihood":
        return negative_log_likelihood
    if goal == "metric":
        return minus_label_metric(task)
    if goal == PROFILED:
        return _profiled(task)
    if isinstance(task, GenerationTask):
        raise TaskError(
            f"task {task.name!r} is a generation, which has no labels to choose between; train "
            "the likelihood of its answers"
        )
    return cross_entropy
