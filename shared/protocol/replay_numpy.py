"""Replay in numpy: the readable specification, and the fallback if numba cannot be loaded."""

import numpy as np
from numpy.typing import NDArray

from samara.shared.protocol.directions import Distribution, directions

_ELEMENTS_AT_ONCE = 2**18


class NumpyBackend:
    """The `samara.shared.protocol.replay.Backend` in plain numpy; it specifies all others."""

    name = "numpy"

    def fold(
        self,
        state: NDArray[np.int64],
        seeds: NDArray[np.uint64],
        coefficients: NDArray[np.int64],
        distribution: Distribution,
    ) -> None:
        """Add Σ c·z to the state in place."""
        at_once = max(1, _ELEMENTS_AT_ONCE // max(1, len(state)))
        for start in range(0, len(seeds), at_once):
            some = slice(start, start + at_once)
            z = self.directions(seeds[some], len(state), distribution)
            for coefficient, direction in zip(coefficients[some], z, strict=True):
                state += coefficient * direction

    def directions(
        self, seeds: NDArray[np.uint64], count: int, distribution: Distribution, first: int = 0
    ) -> NDArray[np.int16]:
        """Return the directions of n seeds from element `first` on, int16 [n, count]."""
        return directions(seeds, count, distribution, first)
