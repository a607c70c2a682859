"""Counts of true against predicted labels, which add up over clients, and what they say."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray


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
        hits = self.counts.diagonal()
        occurrences = self.counts.sum(axis=1) + self.counts.sum(axis=0)
        present = occurrences > 0
        if not present.any():
            return math.nan
        return float(np.mean(2 * hits[present] / occurrences[present]))
