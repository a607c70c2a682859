"""Exact replay: state ← state + Σ c·z(seed) in integers, with the same bits everywhere.

A state is int64 with unit 2⁻⁵¹. A direction has unit 2⁻¹¹. A coefficient is int32 with unit
2^(shift − 40). Integer sums commute, so order, grouping and device cannot change a bit. Only a
`Shrink` must keep its position. A private track may also add `DenseValues`.
docs/reference/replay.md describes the format.

A `Backend` does the arithmetic. `samara.shared.protocol.replay_numpy` is the readable
specification, and `samara.shared.protocol.replay_numba` is the fast one. Code that has loaded a
model can pass a torch backend (`samara.shared.model.replay_torch`).
"""

import hashlib
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import ReplayError
from samara.shared.protocol.directions import DIRECTION_BITS, Distribution
from samara.shared.protocol.replay_numpy import NumpyBackend

log = logging.getLogger("samara.replay")

STATE_BITS = 51
COEFFICIENT_BITS = STATE_BITS - DIRECTION_BITS
MAX_SHIFT = 10
MAX_SHRINK = 62
BACKEND_VARIABLE = "SAMARA_REPLAY_BACKEND"
BACKENDS = ("numpy", "numba", "torch", "cuda")
_INT32_MAX = 2**31 - 1
_STATE_LIMIT = 2**62
_DIRECTION_LIMIT = 2**15
_MAX_COEFFICIENT = 1024.0
MAX_DENSE_VALUE = 2**61
"""Largest absolute value that `DenseValues` may add to an element, in units of a state: 1,024."""
_SHRUNK_AT_ONCE = 2**16


class Backend(Protocol):
    """An implementation of directions and their weighted sums. All backends give the same bits."""

    @property
    def name(self) -> str:
        """The name, one of `BACKENDS`."""

    def fold(
        self,
        state: NDArray[np.int64],
        seeds: NDArray[np.uint64],
        coefficients: NDArray[np.int64],
        distribution: Distribution,
    ) -> None:
        """Add Σ c·z(seed) to a state in place, modulo 2⁶⁴.

        Args:
            state: int64 [d], contiguous.
            seeds: uint64 [n], contiguous.
            coefficients: int64 [n], contiguous, unit 2⁻⁴⁰.
            distribution: distribution of the directions.
        """

    def directions(
        self, seeds: NDArray[np.uint64], count: int, distribution: Distribution, first: int = 0
    ) -> NDArray[np.int16]:
        """Return directions as `samara.shared.protocol.directions.directions` does."""


@dataclass(frozen=True)
class CoefficientBlock:
    """Coefficients with a common shift, in the order of their seeds.

    Attributes:
        shift: common shift, 0 … 10; the unit of a coefficient is 2^(shift − 40).
        coefficients: coefficients in this unit, int32 [n].
    """

    shift: int
    coefficients: NDArray[np.int32]


@dataclass(frozen=True)
class Shrink:
    """A change of a state by weight decay with the factor 1 − 2^−bits: state −= state >> bits.

    Its position among other changes matters.

    Attributes:
        bits: number of bits of the shift, 1 … 62.
    """

    bits: int


@dataclass(frozen=True, eq=False)
class DenseValues:
    """Values added to consecutive elements of a state.

    A private track may hold dense values. The only dense values in a federation's track are its
    common intercept.

    Attributes:
        first: index of the first element.
        values: values with unit 2⁻⁵¹, int64 [n], each within ±`MAX_DENSE_VALUE`.
    """

    first: int
    values: NDArray[np.int64]

    @classmethod
    def from_numbers(cls, first: int, numbers: NDArray[np.float64]) -> Self:
        """Convert numbers, float64 [n], to values, rounded half to even.

        Raises:
            ReplayError: if a number is not finite, or is beyond ±1,024.
        """
        scaled = np.rint(np.ldexp(numbers, STATE_BITS))
        if not np.all(np.abs(scaled) <= MAX_DENSE_VALUE):
            raise ReplayError(
                f"a private value of {_widest(numbers):g} cannot be stored: it is not finite, "
                f"or is beyond ±{MAX_DENSE_VALUE >> STATE_BITS:,}"
            )
        return cls(first, scaled.astype(np.int64))

    @classmethod
    def of(cls, first: int, values: NDArray[np.int64]) -> Self:
        """Wrap values with unit 2⁻⁵¹, int64 [n].

        Raises:
            ReplayError: if a value is beyond ±1,024.
        """
        dense = cls(first, values)
        if dense.bound > MAX_DENSE_VALUE:
            raise ReplayError(
                f"a private value of {dense.bound / 2**STATE_BITS:g} cannot be stored: it is "
                f"beyond ±{MAX_DENSE_VALUE >> STATE_BITS:,}"
            )
        return dense

    @property
    def bound(self) -> int:
        """The largest absolute value."""
        return max(int(self.values.max(initial=0)), -int(self.values.min(initial=0)))


ScalarGroup = tuple[NDArray[np.uint64], CoefficientBlock]
"""Seeds, uint64 [n], and a block of n coefficients."""
Entry = ScalarGroup | Shrink | DenseValues
"""A change of a state. Entries between two shrinks may be applied in any order."""


def zero_state(size: int) -> NDArray[np.int64]:
    """Return the state before the first round: zeros, int64 [d]."""
    return np.zeros(size, np.int64)


def quantize(coefficients: NDArray[np.float64]) -> list[CoefficientBlock]:
    """Round coefficients half to even to integers with the smallest shift that fits.

    Coefficients beyond ±2, which are too large even for shift 10, are split into several blocks.

    Args:
        coefficients: float64 [n].

    Returns:
        Usually one block; several if a coefficient is beyond ±2; none without coefficients.

    Raises:
        ReplayError: if a coefficient is not finite, or is beyond ±1,024.
    """
    if len(coefficients) == 0:
        return []
    widest = float(np.abs(coefficients).max())
    if not widest <= _MAX_COEFFICIENT:
        raise ReplayError(
            f"a coefficient of {_widest(coefficients):g} cannot be applied: its absolute value "
            f"must be at most {_MAX_COEFFICIENT:g}; lower learning-rate or set clip"
        )
    shift = 0
    while shift < MAX_SHIFT and round(math.ldexp(widest, COEFFICIENT_BITS - shift)) > _INT32_MAX:
        shift += 1
    rest = np.rint(np.ldexp(coefficients, COEFFICIENT_BITS - shift)).astype(np.int64)
    if shift < MAX_SHIFT:
        return [CoefficientBlock(shift, rest.astype(np.int32))]
    blocks = []
    while np.any(rest):
        part = np.clip(rest, -_INT32_MAX, _INT32_MAX)
        blocks.append(CoefficientBlock(MAX_SHIFT, part.astype(np.int32)))
        rest = rest - part
    return blocks


def _widest(values: NDArray[np.float64]) -> float:
    finite = np.isfinite(values)
    return float(values[~finite][0]) if not finite.all() else float(np.abs(values).max())


def check_fits(
    state: NDArray[np.int64], changes: Sequence[CoefficientBlock | Shrink | DenseValues]
) -> None:
    """Check that changes keep a state in its exact range, before any change is applied.

    Args:
        state: int64 [d].
        changes: coefficient blocks, shrinks and dense values in the order of application.

    Raises:
        ReplayError: if an upper bound of |state| reaches 2⁶², or dense values are outside the
            state. Every block raises the bound by Σ|c|·2^shift·2¹⁵, and dense values raise it by
            their largest absolute value. Every shrink lowers it.
    """
    bound = max(int(state.max(initial=0)), -int(state.min(initial=0)))
    fits = bound < _STATE_LIMIT
    for change in changes:
        if isinstance(change, Shrink):
            bound -= bound >> change.bits
        elif isinstance(change, DenseValues):
            _elements_of(state, change)
            bound += change.bound
            fits = fits and bound < _STATE_LIMIT
        else:
            total = int(np.abs(change.coefficients.astype(np.int64)).sum())
            bound += (total << change.shift) * _DIRECTION_LIMIT
            fits = fits and bound < _STATE_LIMIT
    if not fits:
        raise ReplayError(
            "the update does not fit the exact state (range ±2,048) and was not applied; "
            "lower learning-rate or set clip"
        )


def replay(
    state: NDArray[np.int64],
    entries: Sequence[Entry],
    distribution: Distribution,
    backend: Backend | None = None,
) -> NDArray[np.int64]:
    """Apply groups of (seeds, coefficients), dense values and shrinks to a state, in order.

    Args:
        state: state before, int64 [d]; it is not changed.
        entries: groups and dense values, in any order between two shrinks.
        distribution: distribution of the directions.
        backend: replay backend; `default_backend` if None.

    Returns:
        The state after, int64 [d].

    Raises:
        ReplayError: if the changes could leave the exact range; the state is unchanged.
    """
    check_fits(state, [entry[1] if isinstance(entry, tuple) else entry for entry in entries])
    return rebuild(state, entries, distribution, backend)


def rebuild(
    state: NDArray[np.int64],
    entries: Sequence[Entry],
    distribution: Distribution,
    backend: Backend | None = None,
) -> NDArray[np.int64]:
    """Apply the checked entries of many rounds without checking the range again.

    Coefficients of equal seeds between two shrinks are summed before a direction is generated. So a
    run with a pool of K seeds costs K directions, whatever its number of rounds. An intermediate
    sum may leave the range of int64. This does not change the result, because sums are modulo 2⁶⁴.

    Args:
        state: state before, int64 [d]; it is not changed.
        entries: entries of all rounds in their order.
        distribution: distribution of the directions.
        backend: replay backend; `default_backend` if None.

    Returns:
        The state after, int64 [d]; the caller must compare its digest.

    Raises:
        ReplayError: if dense values are outside the state.
    """
    backend = backend or default_backend()
    after = np.array(state, np.int64, order="C")
    for _, run in groupby(entries, key=lambda entry: isinstance(entry, Shrink)):
        groups = []
        for entry in run:
            if isinstance(entry, Shrink):
                _shrink(after, entry)
            elif isinstance(entry, DenseValues):
                part = _elements_of(after, entry)
                part += entry.values
            else:
                groups.append(entry)
        seeds, coefficients = _joined(groups)
        # Seeds are rarely equal, and sorting them alone is faster than summing
        ascending = np.sort(seeds)
        if (ascending[1:] == ascending[:-1]).any():
            seeds, coefficients = summed(groups)
        if len(seeds):
            backend.fold(after, seeds, coefficients, distribution)
    return after


def _joined(groups: Sequence[ScalarGroup]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the seeds uint64 [n] of all groups, and the coefficients int64 [n], unit 2⁻⁴⁰."""
    if not groups:
        return np.zeros(0, np.uint64), np.zeros(0, np.int64)
    parts = [p.coefficients.astype(np.int64) << np.int64(p.shift) for _, p in groups]
    return np.concatenate([seeds for seeds, _ in groups]), np.concatenate(parts)


def summed(groups: Sequence[ScalarGroup]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Sum the coefficients of equal seeds.

    Returns:
        Seeds uint64 [n], ascending, and coefficients int64 [n] with unit 2⁻⁴⁰, modulo 2⁶⁴,
        none of them zero.
    """
    seeds, coefficients = _joined(groups)
    if not len(seeds):
        return seeds, coefficients
    order = np.argsort(seeds)
    seeds, coefficients = seeds[order], coefficients[order]
    begins = np.flatnonzero(np.append(True, seeds[1:] != seeds[:-1])[: len(seeds)])
    seeds, coefficients = seeds[begins], np.add.reduceat(coefficients, begins)
    used = coefficients != 0
    return seeds[used], coefficients[used]


def _shrink(state: NDArray[np.int64], shrink: Shrink) -> None:
    """Apply a shrink record (weight decay) in place, in cache-sized pieces."""
    for start in range(0, len(state), _SHRUNK_AT_ONCE):
        part = state[start : start + _SHRUNK_AT_ONCE]
        part -= part >> np.int64(shrink.bits)


def _elements_of(state: NDArray[np.int64], dense: DenseValues) -> NDArray[np.int64]:
    """Return a view of the state's elements to which dense values are added.

    Raises:
        ReplayError: if the state has no such elements.
    """
    part = state[dense.first : dense.first + len(dense.values)]
    if len(part) != len(dense.values):
        raise ReplayError(
            f"{len(dense.values)} dense values from element {dense.first} on are outside the "
            f"state of {len(state)} elements"
        )
    return part


def forced_backend() -> str:
    """Return the backend's name that an environment variable forces, or an empty text.

    Raises:
        ReplayError: if there is no such backend.
    """
    name = os.environ.get(BACKEND_VARIABLE, "")
    if name and name not in BACKENDS:
        raise ReplayError(
            f"{BACKEND_VARIABLE}={name}: there is no such backend; "
            f"use one of {', '.join(BACKENDS)}, or unset the variable for the fastest"
        )
    return name


def default_backend(threads: int = 0) -> Backend:
    """Return the backend that the environment forces, or else the fastest one without torch.

    ``torch`` and ``cuda`` apply only where a model is loaded.

    Args:
        threads: most threads of a call; 0 lets the backend choose.

    Raises:
        ReplayError: if the forced backend does not exist or cannot be loaded.
    """
    return _backend(forced_backend(), threads)


@cache
def _backend(forced: str, threads: int) -> Backend:
    if forced == "numpy":
        return NumpyBackend()
    try:
        from samara.shared.protocol.replay_numba import NumbaBackend
    except (ImportError, RuntimeError) as error:  # RuntimeError: no folder for compiled code
        if forced == "numba":
            raise ReplayError(
                f"{BACKEND_VARIABLE}=numba: numba cannot be loaded: {error}; install it, or set "
                "NUMBA_CACHE_DIR to a folder that can be written"
            ) from error
        log.info("replaying with numpy, which is slow: numba cannot be loaded: %s", error)
        return NumpyBackend()
    return NumbaBackend(threads)


def to_float32(state: NDArray[np.int64]) -> NDArray[np.float32]:
    """Convert a state to weights, float32 [d]; each weight is rounded once."""
    weights: NDArray[np.float32] = state.astype(np.float32) * np.float32(2.0**-STATE_BITS)
    return weights


def digest(layout_hash: bytes, state: NDArray[np.int64]) -> bytes:
    """Return the SHA-256 of layout hash and the state's little-endian bytes, 32 bytes."""
    return hashlib.sha256(layout_hash + state.astype("<i8").tobytes()).digest()
