"""The map from a state, the integers of a ledger, to the float32 weights of an adapter."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.errors import ReplayError
from shared.replay import to_float32

STATE_LIMIT = 2**62
"""The absolute value that every number of a state stays below, in its units; a start too."""


@dataclass(frozen=True, eq=False)
class WeightMap:
    """The map from a state to the weights that forward passes use.

    Every place that turns a state into weights uses it.

    Attributes:
        start: int64 [d] in units of a state, added to every state as integers; None adds nothing.
    """

    start: NDArray[np.int64] | None = None

    def weights(self, state: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the weights of the adapter under a state, float32 [d], each rounded once.

        Raises:
            ReplayError: if the sum with the start would leave the range of int64.
        """
        if self.start is None:
            return to_float32(state)
        if np.any(np.abs(state) >= STATE_LIMIT):
            raise ReplayError("the state is too large to add the start to; lower learning-rate")
        return to_float32(self.start + state)
