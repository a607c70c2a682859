"""Losses and confusion counts from label scores."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from samara.shared.protocol.frames.evaluation import EvaluationColumn


@dataclass(frozen=True, eq=False)
class Confusion:
    """Counts of predicted labels for each true label.

    Attributes:
        counts: int64 [labels, labels]; rows are true labels, columns are predicted labels.
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
        """Add the counts of two sets of examples of the same task."""
        if self.counts.shape != other.counts.shape:
            raise ValueError("confusions of different numbers of labels cannot be added")
        return Confusion(self.counts + other.counts)

    @property
    def examples(self) -> int:
        """The number of examples."""
        return int(self.counts.sum())

    @property
    def accuracy(self) -> float:
        """Share of correct predictions; NaN without examples."""
        return int(self.counts.trace()) / self.examples if self.examples else math.nan

    @property
    def macro_f1(self) -> float:
        """Mean over labels of F1 = 2·hits / (times true + times predicted).

        Labels that are never true and never predicted are left out. F1 is 0 for a label that is
        never predicted correctly. The mean is NaN without examples.
        """
        values = [f1 for f1 in map(self.f1, range(len(self.counts))) if not math.isnan(f1)]
        return float(np.mean(values)) if values else math.nan

    @property
    def matthews(self) -> float:
        """Matthews correlation of labels and predictions, from −1 to 1; NaN without examples.

        The correlation is 0 if all labels or all predictions are equal. For more than two labels,
        it is R_K of Gorodkin, "Comparing two K-category assignments by a K-category correlation
        coefficient" (2004).
        """
        if not self.examples:
            return math.nan
        true, predicted = self.counts.sum(axis=1), self.counts.sum(axis=0)
        square = self.examples**2
        spread = (square - int(true @ true)) * (square - int(predicted @ predicted))
        shared = int(self.counts.trace()) * self.examples - int(true @ predicted)
        return shared / math.sqrt(spread) if spread else 0.0

    @property
    def pearson(self) -> float:
        """Pearson correlation of labels and predictions, from −1 to 1; NaN without examples.

        Labels count as equally spaced numbers. The correlation is 0 if all labels or all
        predictions are equal.
        """
        if not self.examples:
            return math.nan
        values = np.arange(len(self.counts))
        true, predicted = self.counts.sum(axis=1), self.counts.sum(axis=0)
        true_sum, predicted_sum = int(true @ values), int(predicted @ values)
        shared = self.examples * int(values @ self.counts @ values) - true_sum * predicted_sum
        true_spread = self.examples * int(true @ values**2) - true_sum**2
        predicted_spread = self.examples * int(predicted @ values**2) - predicted_sum**2
        spread = true_spread * predicted_spread
        return shared / math.sqrt(spread) if spread else 0.0

    def f1(self, label: int) -> float:
        """Return a label's F1; NaN if the label is never true and never predicted."""
        occurrences = int(self.counts[label].sum() + self.counts[:, label].sum())
        return 2 * int(self.counts[label, label]) / occurrences if occurrences else math.nan


def cross_entropy(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return each perturbation's mean over its rows of −log softmax(scores)[label], in nats.

    Args:
        scores: float32 [P, rows, labels], a log-likelihood or similarity per label; at least one
            row. −∞ marks a label that a row does not have.
        labels: int64 [rows], the true label of each row, the same under all P perturbations.

    Returns:
        float64 [P]. A perturbation with a score of NaN or +∞ has a loss that is not finite.
    """
    return exact_cross_entropy(scores.astype(np.float64), labels)


def exact_cross_entropy(
    scores: NDArray[np.float64], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the same losses as `cross_entropy`, computed in float64 from float64 scores."""
    with np.errstate(invalid="ignore"):
        shifted = scores - scores.max(axis=2, keepdims=True)
    right = shifted[:, np.arange(len(labels)), labels]
    row_losses = np.log(np.exp(shifted, out=shifted).sum(axis=2)) - right
    losses: NDArray[np.float64] = np.mean(row_losses, axis=1)
    return losses


def auc(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Return the area under the ROC curve (AUC) of two labels' scores.

    The AUC is the share of ordered pairs among all pairs (see `ordered_pairs`). Ties count half. A
    label bias does not change the AUC.

    Args:
        scores: float32 [n, 2].
        labels: int64 [n].

    Returns:
        A number from 0 to 1; NaN without an example of each label.
    """
    area = evaluation_column("", scores, labels).auc
    return math.nan if area is None else area


def ordered_pairs(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> int:
    """Return twice the number of ordered pairs plus the number of tied pairs.

    This is twice Mann and Whitney's U. A pair has one example of label 0 and one of label 1. It is
    ordered if the score of label 1 minus the score of label 0 is higher for the example of label 1.

    Args:
        scores: float32 [n, 2].
        labels: int64 [n].
    """
    difference = scores[:, 1].astype(np.float64) - scores[:, 0]
    first, second = np.sort(difference[labels == 0]), difference[labels == 1]
    sides = (np.searchsorted(first, second, "left"), np.searchsorted(first, second, "right"))
    return int(sum(side.sum() for side in sides))


def evaluation_column(
    name: str,
    scores: NDArray[np.float32],
    labels: NDArray[np.int64],
    tokens: NDArray[np.int64] | None = None,
) -> EvaluationColumn:
    """Return a model's loss, confusion counts and, for two labels, number of ordered pairs.

    For generation, an example's two scores are its mean log-likelihood per token, and its share of
    correctly predicted tokens. The loss is the mean over all tokens of all examples. The confusion
    has one true label, with the counts of correctly and of wrongly predicted tokens.

    Args:
        name: name of the column.
        scores: float32 [n, labels]; [n, 2] for generation.
        labels: int64 [n], the true labels.
        tokens: number of answer tokens of each example for generation, int64 [n].
    """
    if tokens is not None:
        return _token_column(name, scores, tokens)
    label_count = scores.shape[1]
    if len(labels) == 0:
        counts = np.zeros((label_count, label_count), np.int64)
        return EvaluationColumn(name, 0.0, counts, 0 if label_count == 2 else None)
    loss = float(cross_entropy(scores[None], labels)[0])
    counts = Confusion.from_predictions(labels, scores.argmax(axis=1), label_count).counts
    ordered = ordered_pairs(scores, labels) if label_count == 2 else None
    return EvaluationColumn(name, loss, counts, ordered)


def _token_column(
    name: str, scores: NDArray[np.float32], tokens: NDArray[np.int64]
) -> EvaluationColumn:
    count = int(tokens.sum())
    log_likelihoods, shares = scores.astype(np.float64).T
    predicted = int(np.rint(shares * tokens).sum())
    loss = float(-(log_likelihoods * tokens).sum() / count) if count else 0.0
    return EvaluationColumn(name, loss, np.array([[predicted, count - predicted], [0, 0]]))
