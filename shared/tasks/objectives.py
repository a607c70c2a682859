"""Objectives: from the scores, or the answers, of a point to its one loss.

A zeroth-order step needs the loss of a point and not its derivative, so a metric can be trained
directly (MeZO, section 3.3): the loss is minus the metric.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shared.errors import TaskError
from shared.tasks.kinds import GenerationTask, Task
from shared.tasks.metrics import Confusion, answer_metric, label_metric

ObjectiveName = Literal["cross-entropy", "likelihood", "metric"]
Objective = Callable[[NDArray[np.float32], NDArray[np.int64]], NDArray[np.float64]]
"""Scores [points, rows, width] and true labels [rows] to losses [points]."""


def cross_entropy(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return each point's mean over its rows of −log softmax(scores)[label], in nats.

    Args:
        scores: float32 [points, rows, labels], a log-likelihood or similarity per label; at
            least one row. −∞ where a row has no such label.
        labels: int64 [rows], the true label of each row, the same under every point.

    Returns:
        float64 [points]. A point with a score of NaN or +∞ gets a loss that is not finite.
    """
    exact = scores.astype(np.float64)
    with np.errstate(invalid="ignore"):
        shifted = exact - exact.max(axis=2, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(axis=2))
    losses: NDArray[np.float64] = np.mean(
        log_sum - shifted[:, np.arange(len(labels)), labels], axis=1
    )
    return losses


def negative_log_likelihood(
    scores: NDArray[np.float32], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return each point's mean over its rows of −scores[label]: what is wrong plays no part.

    Of a causal LM this is the loss over the whole vocabulary, per token of what is right: teacher
    forcing (MeZO, appendix E.4; P-RGE, appendix A.3).

    Args:
        scores: float32 [points, rows, width], log-likelihoods per token; at least one row.
        labels: int64 [rows]; of a generation all 0.

    Returns:
        float64 [points], in nats.
    """
    right = scores[:, np.arange(len(labels)), labels]
    losses: NDArray[np.float64] = np.mean(-right.astype(np.float64), axis=1)
    return losses


def minus_label_metric(task: Task) -> Objective:
    """Minus the task's metric, accuracy or an F1, of what scores highest.

    The losses of points that predict the same are equal. A point whose scores are not finite where
    a row has its true label gets NaN.

    Raises:
        TaskError: if the task is a generation, whose metric is of decoded answers.
    """
    if isinstance(task, GenerationTask):
        raise TaskError(
            f"task {task.name!r} is a generation, whose metric is of decoded answers, not of "
            "scores; train the likelihood, or use minus_answer_metric"
        )

    def losses(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
        width = scores.shape[2]
        values = [
            label_metric(task, Confusion.of(labels, point.argmax(axis=1), width))
            for point in scores
        ]
        right = scores[:, np.arange(len(labels)), labels]
        sound = np.isfinite(right).all(axis=1) & ~np.isnan(scores).any(axis=(1, 2))
        return np.where(sound, -np.array(values), np.nan)

    return losses


def minus_answer_metric(
    task: GenerationTask, predictions: Sequence[Sequence[str]], answers: Sequence[Sequence[str]]
) -> NDArray[np.float64]:
    """Minus the task's metric, exact match or token F1, of decoded answers.

    Args:
        task: says which metric.
        predictions: for every point the answer of every row.
        answers: for every row the accepted answers.

    Returns:
        float64 [points].
    """
    return np.array([-answer_metric(task, point, answers) for point in predictions])


def objective_for(task: Task, goal: ObjectiveName) -> Objective:
    """What a task is trained on.

    Args:
        task: of any kind.
        goal: ``cross-entropy`` over the labels or candidates; ``likelihood`` of what is right
            alone, the only one that a generation has; or minus the task's own ``metric``.

    Raises:
        TaskError: if a task of this kind has no such objective.
    """
    if goal == "likelihood":
        return negative_log_likelihood
    if goal == "metric":
        return minus_label_metric(task)
    if isinstance(task, GenerationTask):
        raise TaskError(
            f"task {task.name!r} is a generation, which has no labels to choose between; train "
            "the likelihood of its answers"
        )
    return cross_entropy
