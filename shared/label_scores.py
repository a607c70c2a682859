"""Losses and confusion counts of scores of labels. Pure."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from samara.shared.frames.evaluation import EvaluationColumn


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

    @property
    def matthews(self) -> float:
        """Matthews' correlation of labels and predictions, from −1 to 1; NaN without examples.

        It is 0 where all labels or all predictions are one. For more than two labels it is R_K of
        Gorodkin, "Comparing two K-category assignments by a K-category correlation coefficient"
        (2004).
        """
        if not self.examples:
            return math.nan
        true, predicted = self.counts.sum(axis=1), self.counts.sum(axis=0)
        square = self.examples**2
        spread = (square - int(true @ true)) * (square - int(predicted @ predicted))
        shared = int(self.counts.trace()) * self.examples - int(true @ predicted)
        return shared / math.sqrt(spread) if spread else 0.0

    def f1(self, label: int) -> float:
        """Return a label's F1, 2·hits / (times true + times predicted); NaN if it is neither."""
        occurrences = int(self.counts[label].sum() + self.counts[:, label].sum())
        return 2 * int(self.counts[label, label]) / occurrences if occurrences else math.nan


def cross_entropy(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return each perturbation's mean over its rows of −log softmax(scores)[label], in nats.

    Args:
        scores: float32 [P, rows, labels], a log-likelihood or similarity per label; at least one
            row. −∞ where a row has no such label.
        labels: int64 [rows], the true label of each row under all P perturbations.

    Returns:
        float64 [P]. A perturbation with a score of NaN or +∞ has a loss that is not finite.
    """
    return exact_cross_entropy(scores.astype(np.float64), labels)


def exact_cross_entropy(
    scores: NDArray[np.float64], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return `cross_entropy` of scores in float64."""
    with np.errstate(invalid="ignore"):
        shifted = scores - scores.max(axis=2, keepdims=True)
    right = shifted[:, np.arange(len(labels)), labels]
    row_losses = np.log(np.exp(shifted, out=shifted).sum(axis=2)) - right
    losses: NDArray[np.float64] = np.mean(row_losses, axis=1)
    return losses


def auc(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Return the area under the ROC curve of two labels' scores; no label bias changes it.

    It is the share of pairs, one example of each label, of which the second label's has the larger
    lead of that label; a tie counts half.

    Args:
        scores: float32 [n, 2].
        labels: int64 [n].

    Returns:
        A number from 0 to 1; NaN without an example of each label.
    """
    from sklearn.metrics import roc_auc_score  # here, since a phone has numpy alone

    if len(np.unique(labels)) < 2:
        return math.nan
    return float(roc_auc_score(labels, scores[:, 1].astype(np.float64) - scores[:, 0]))


def evaluation_column(
    name: str,
    scores: NDArray[np.float32],
    labels: NDArray[np.int64],
    tokens: NDArray[np.int64] | None = None,
) -> EvaluationColumn:
    """Return the loss and the confusion counts of scores [n, labels] against true labels [n].

    In a generation the scores are log-likelihoods per token and shares of likeliest tokens, and
    all tokens together count: the loss is their mean, and the confusion has one true label, the
    text's own token, with the counts of tokens that the model predicts and that it does not.

    Args:
        name: name of the column.
        scores: float32 [n, labels]; [n, 2] in a generation.
        labels: int64 [n].
        tokens: number of tokens of each answer of a generation, int64 [n].
    """
    if tokens is not None:
        return _token_column(name, scores, tokens)
    label_count = scores.shape[1]
    if len(labels) == 0:
        return EvaluationColumn(name, 0.0, np.zeros((label_count, label_count), np.int64))
    loss = float(cross_entropy(scores[None], labels)[0])
    counts = Confusion.from_predictions(labels, scores.argmax(axis=1), label_count).counts
    return EvaluationColumn(name, loss, counts)


def _token_column(
    name: str, scores: NDArray[np.float32], tokens: NDArray[np.int64]
) -> EvaluationColumn:
    count = int(tokens.sum())
    log_likelihoods, shares = scores.astype(np.float64).T
    predicted = int(np.rint(shares * tokens).sum())
    loss = float(-(log_likelihoods * tokens).sum() / count) if count else 0.0
    return EvaluationColumn(name, loss, np.array([[predicted, count - predicted], [0, 0]]))
