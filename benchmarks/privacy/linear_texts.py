"""Texts with one client's labels, as a model that is linear around its base sees them.

The difference of two labels' scores is linear in the trained numbers, label bias and all. For tasks
of two labels.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samara.shared.label_scores import Confusion

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts with one client's labels.

    Attributes:
        gradients: of the two labels' difference by the trained numbers, float64 [n, d].
        margins: that difference at the base, float64 [n].
        labels: 0 or 1, int64 [n].
    """

    gradients: Floats
    margins: Floats
    labels: NDArray[np.int64]

    def loss(self, numbers: Floats) -> float:
        """Mean cross-entropy at these numbers, float64 [d]; NaN without texts."""
        signs = 2 * self.labels - 1
        return float(np.mean(np.logaddexp(0, -signs * (self.margins + self.gradients @ numbers))))

    def confusion(self, numbers: Floats) -> Confusion:
        """Labels against what these numbers, float64 [d], answer."""
        answers = self.margins + self.gradients @ numbers > 0
        return Confusion.from_predictions(self.labels, answers.astype(np.int64), 2)

    def slope(self, numbers: Floats) -> Floats:
        """Gradient of the mean loss, float64 [d]."""
        chance = 1 / (1 + np.exp(-self.margins - self.gradients @ numbers))
        return (chance - self.labels) @ self.gradients / len(self.labels)

    def some(self, batch: NDArray[np.int64]) -> "Texts":
        """Those of a batch."""
        return Texts(self.gradients[batch], self.margins[batch], self.labels[batch])
