"""Exact replay: state ← state + Σ c·z(seed) in integers, the same bits for everybody.

The state is int64 with unit 2⁻⁵¹; a direction has unit 2⁻¹¹; a coefficient is int32 with unit
2^(shift − 40). Integer sums commute, so neither order nor grouping nor device can change a bit.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.directions import DIRECTION_BITS, Distribution, directions
from shared.errors import ReplayError

STATE_BITS = 51
COEFFICIENT_BITS = STATE_BITS - DIRECTION_BITS
MAX_SHIFT = 10
_INT32_MAX = 2**31 - 1
_STATE_LIMIT = 2**62
_DIRECTION_LIMIT = 2**15
_MAX_COEFFICIENT = 1024.0
_SEEDS_PER_BLOCK = 32


@dataclass(frozen=True)
class Pass:
    """Coefficients under one shift, in the order of their seeds.

    Attributes:
        shift: 0 … 10; the unit of a coefficient is 2^(shift − 40).
        coefficients: int32 [n].
    """

    shift: int
    coefficients: NDArray[np.int32]


def zero_state(size: int) -> NDArray[np.int64]:
    """The state before the first round: int64 [d] zeros."""
    return np.zeros(size, np.int64)


def quantize(coefficients: NDArray[np.float64]) -> list[Pass]:
    """Coefficients as integers under the smallest shift that fits, rounded half to even.

    What is too wide even for shift 10 (beyond ±2) is split into several passes; no pass at all is
    needed for zeros.

    Args:
        coefficients: float64 [n].

    Returns:
        One pass as a rule; none for an empty list.

    Raises:
        ReplayError: if a coefficient is not finite or beyond ±1,024.
    """
    if len(coefficients) == 0:
        return []
    if not np.all(np.abs(coefficients) <= _MAX_COEFFICIENT):
        raise ReplayError(
            f"a coefficient of {_widest(coefficients):g} cannot be applied: it is not finite or "
            f"beyond ±{_MAX_COEFFICIENT:g}; lower learning-rate or set clip"
        )
    for shift in range(MAX_SHIFT + 1):
        scaled = np.rint(np.ldexp(coefficients, COEFFICIENT_BITS - shift))
        if np.all(np.abs(scaled) <= _INT32_MAX):
            return [Pass(shift, scaled.astype(np.int32))]
    rest = scaled.astype(np.int64)
    passes = []
    while np.any(rest):
        part = np.clip(rest, -_INT32_MAX, _INT32_MAX)
        passes.append(Pass(MAX_SHIFT, part.astype(np.int32)))
        rest = rest - part
    return passes


def _widest(values: NDArray[np.float64]) -> float:
    finite = np.isfinite(values)
    return float(values[~finite][0]) if not finite.all() else float(np.abs(values).max())


def reach(passes: Sequence[Pass]) -> int:
    """The farthest that these passes can move an element, in units of the state."""
    return sum(
        (int(np.abs(p.coefficients.astype(np.int64)).sum()) << p.shift) * _DIRECTION_LIMIT
        for p in passes
    )


def check_fits(state: NDArray[np.int64], passes: Sequence[Pass]) -> None:
    """Refuse what could leave the exact range, before anything is applied.

    Raises:
        ReplayError: if max |state| + Σ|c|·2^shift·2¹⁵ is not below 2⁶², so that no later round
            can find the state out of range either.
    """
    largest = max(int(state.max(initial=0)), -int(state.min(initial=0)))
    if largest + reach(passes) >= _STATE_LIMIT:
        raise ReplayError(
            "the update does not fit the exact state (range ±2,048) and was not applied; "
            "lower learning-rate or set clip"
        )


def add(
    state: NDArray[np.int64], directions_: NDArray[np.int16], one_pass: Pass
) -> NDArray[np.int64]:
    """state + (Σ c·z) << shift for directions already at hand.

    Args:
        state: int64 [d].
        directions_: int16 [n, d].
        one_pass: n coefficients.

    Returns:
        int64 [d], a new array.
    """
    total = np.zeros_like(state)
    for coefficient, z in zip(one_pass.coefficients, directions_, strict=True):
        total += np.int64(coefficient) * z.astype(np.int64)
    return state + (total << np.int64(one_pass.shift))


def replay(
    state: NDArray[np.int64],
    groups: Sequence[tuple[NDArray[np.uint64], Pass]],
    distribution: Distribution,
) -> NDArray[np.int64]:
    """Apply groups of (seeds, coefficients).

    Args:
        state: int64 [d], not changed.
        groups: seeds uint64 [n] with a pass of n coefficients each, in any order.
        distribution: of the directions.

    Returns:
        int64 [d], the state after.

    Raises:
        ReplayError: if it cannot fit; nothing is applied then.
    """
    check_fits(state, [one_pass for _, one_pass in groups])
    for seeds, one_pass in groups:
        for start in range(0, len(seeds), _SEEDS_PER_BLOCK):
            block = slice(start, start + _SEEDS_PER_BLOCK)
            part = Pass(one_pass.shift, one_pass.coefficients[block])
            state = add(state, directions(seeds[block], len(state), distribution), part)
    return state


def to_float32(state: NDArray[np.int64]) -> NDArray[np.float32]:
    """The weights that a state stands for: one rounding, float32 [d]."""
    weights: NDArray[np.float32] = state.astype(np.float32) * np.float32(2.0**-STATE_BITS)
    return weights


def digest(layout_hash: bytes, state: NDArray[np.int64]) -> bytes:
    """SHA-256 of the layout's hash and the state's little-endian bytes, 32 bytes."""
    return hashlib.sha256(layout_hash + state.astype("<i8").tobytes()).digest()
