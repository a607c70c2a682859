"""Objectives: functions that compute a perturbation's loss from its scores or decoded answers.

A zeroth-order step needs no derivative of the loss. So a model can be trained on a metric directly
(MeZO, section 3.3), with minus the metric as the loss.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import TaskError
from samara.shared.extensions import extension
from samara.shared.tasks.kinds import ChoiceTask, GenerationTask, Task
from samara.shared.tasks.label_scores import Confusion, cross_entropy
from samara.shared.tasks.metrics import answer_metric, label_metric
from samara.shared.tasks.profiled_loss import PROFILED, profiled_cross_entropy

CROSS_ENTROPY = "cross-entropy"
SUMMED_CROSS_ENTROPY = "summed-cross-entropy"
METRIC = "metric"
OBJECTIVES = (CROSS_ENTROPY, PROFILED, SUMMED_CROSS_ENTROPY, METRIC)
"""Names of the built-in objectives of a federation."""
ObjectiveName = Literal["cross-entropy", "profiled-cross-entropy", "likelihood", "metric"]
Objective = Callable[[NDArray[np.float32], NDArray[np.int64]], NDArray[np.float64]]
"""Function from scores float32 [P, rows, width] and labels int64 [rows] to losses float64 [P].

A constant added to all scores of a row must not change an objective. `negative_log_likelihood` is
the exception.
"""


def negative_log_likelihood(
    scores: NDArray[np.float32], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return each perturbation's mean over its rows of −scores[label].

    Scores of other answers are not used. For a causal LM this is the loss per token of the right
    answer over the whole vocabulary, with teacher forcing (MeZO, appendix E.4; P-RGE, appendix
    A.3).

    Args:
        scores: float32 [P, rows, width], log-likelihoods per token; at least one row.
        labels: index of each row's right answer, int64 [rows]; 0 in a generation task.

    Returns:
        float64 [P], in nats.
    """
    right = scores[:, np.arange(len(labels)), labels]
    losses: NDArray[np.float64] = np.mean(-right.astype(np.float64), axis=1)
    return losses


def minus_label_metric(task: Task) -> Objective:
    """Return the objective −metric of a task, where a row's highest score is its prediction.

    Perturbations with equal predictions have equal losses. The loss is NaN if the score of a true
    label is not finite, or any score is NaN.

    Raises:
        TaskError: if the task is a generation, whose metric needs decoded answers.
    """
    if isinstance(task, GenerationTask):
        raise TaskError(
            f"task {task.name!r} generates text, so its metric needs decoded answers instead of "
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
    """Return minus a task's metric of decoded answers, exact match or token F1.

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
        name: one of `OBJECTIVES`, or a registered objective. For generation, the cross-entropy is
            over the vocabulary. It is the sum over an answer's tokens if the scores are sums, and
            otherwise the mean.
        task: task of the run.

    Raises:
        TaskError: if the task does not support the objective.
        ConfigError: if no such objective is registered on this machine.
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
    """Return the profiled cross-entropy for a task whose rows share the same labels.

    Raises:
        TaskError: if the labels differ between rows.
    """
    if isinstance(task, GenerationTask):
        reason = "is a generation, which has no label scores to shift"
    elif isinstance(task, ChoiceTask) and task.list_names:
        reason = "has different candidates in each row, so no common shift of scores exists"
    else:
        return profiled_cross_entropy
    raise TaskError(f"task {task.name!r} {reason}; set objective to {CROSS_ENTROPY}")


def decodes_answers(name: str, task: Task) -> bool:
    """Return whether an objective needs decoded answers: the metric of a generation task.

    Raises:
        TaskError: if the task has plain texts, which are not answers.
    """
    if name != METRIC or not isinstance(task, GenerationTask):
        return False
    if task.is_plain_text:
        raise TaskError(
            f"task {task.name!r} has plain texts without prompts and answers, so there is no "
            "metric to train; set objective to cross-entropy"
        )
    return True


def objective_for(task: Task, goal: ObjectiveName) -> Objective:
    """Return a task's objective by name.

    Args:
        task: a task of any kind.
        goal: ``cross-entropy`` over the labels or candidates; ``profiled-cross-entropy`` of
            `samara.shared.tasks.profiled_loss`; ``likelihood`` of the right answer, also for
            generation tasks; or minus the task's ``metric``.

    Raises:
        TaskError: if tasks of this kind do not support the objective.
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
