"""The scalar ratio: the number of scalars that a client has sent about a set of examples, over d.

d is the number of trained numbers. At a ratio of 1, the scalars determine the mean gradient of the
set, provided that the set does not change. Gradients reveal something about examples
(docs/guides/privacy.md). A client counts projected gradients, losses and curvatures. The result of
a run counts only projected gradients.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor
from typing import Any, Self

import numpy as np


@dataclass(frozen=True)
class ScalarCount:
    """The number of scalars that a client has sent about one set of examples with one layout.

    Attributes:
        size: number of trained numbers of the layout, d.
        sent: number of scalars in the client's answers, over all its runs.
        token: token of the last instruction with a counted answer; empty before the first.
    """

    size: int
    sent: int = 0
    token: bytes = b""

    @property
    def ratio(self) -> float:
        """The scalar ratio of this layout: sent scalars per trained number."""
        return self.sent / self.size

    def after_answer(self, token: bytes, scalars: int) -> Self:
        """Return the count after an answer; answers to the same instruction count once.

        Args:
            token: token of the instruction.
            scalars: number of scalars in the answer.
        """
        if token == self.token:
            return self
        return replace(self, sent=self.sent + scalars, token=token)


def remaining_scalars(counts: Iterable[ScalarCount], size: int, limit: float) -> int:
    """Return the number of further scalars that a limit on the scalar ratio allows.

    The ratios of all layouts are added. Otherwise a server could avoid the limit by choosing
    another layout for the same examples.

    Args:
        counts: counts of one set of examples, one per layout.
        size: number of trained numbers of the requested layout, d.
        limit: largest sum of the ratios.
    """
    spent = sum((Fraction(count.sent, count.size) for count in counts), Fraction(0))
    return max(0, floor((Fraction(limit) - spent) * size))


def summarize_scalar_ratios(scalars: Mapping[int, int], size: int) -> dict[str, Any]:
    """Return the scalar ratio of each client of a run, their mean and the largest, for JSON.

    Args:
        scalars: number of projected gradients in each client's reports.
        size: number of trained numbers, d.
    """
    ratios = {str(client): count / size for client, count in sorted(scalars.items())}
    values = list(ratios.values())
    return {
        "mean": float(np.mean(values)) if values else 0.0,
        "max": max(values, default=0.0),
        "clients": ratios,
    }
