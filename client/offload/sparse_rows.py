"""Products of a sparse projector and a dense matrix, compiled by numba for the CPU.

Columns are taken in blocks, so that what is written stays in a core's cache. Every number is summed
in the same order whatever the blocks are. The kernels release Python's lock and use one thread.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

_COLUMNS = 512
_compiled = njit(nogil=True, cache=True)


@_compiled
def add_projected(
    positions: NDArray[np.int64],
    values: NDArray[np.float32],
    matrix: NDArray[np.float32],
    result: NDArray[np.float32],
) -> None:
    """Add Pᵀ·A to a result.

    Args:
        positions: columns of P's nonzeros, int64 [rows, r].
        values: P's nonzeros, float32 [rows, r].
        matrix: A, float32 [rows, columns].
        result: float32 [s, columns], changed in place.
    """
    rows, columns = matrix.shape
    for first in range(0, columns, _COLUMNS):
        last = min(first + _COLUMNS, columns)
        for row in range(rows):
            for index in range(positions.shape[1]):
                position, value = positions[row, index], values[row, index]
                for column in range(first, last):
                    result[position, column] += value * matrix[row, column]


@_compiled
def add_lifted(
    positions: NDArray[np.int64],
    values: NDArray[np.float32],
    matrix: NDArray[np.float32],
    result: NDArray[np.float32],
) -> None:
    """Add P·A to a result; each row of P·A is complete before it is added.

    Args:
        positions: columns of P's nonzeros, int64 [rows, r].
        values: P's nonzeros, float32 [rows, r].
        matrix: A, float32 [s, columns].
        result: float32 [rows, columns], changed in place.
    """
    columns = matrix.shape[1]
    row_sum = np.empty(_COLUMNS, np.float32)
    for first in range(0, columns, _COLUMNS):
        width = min(_COLUMNS, columns - first)
        for row in range(positions.shape[0]):
            row_sum[:width] = 0
            for index in range(positions.shape[1]):
                position, value = positions[row, index], values[row, index]
                for column in range(width):
                    row_sum[column] += value * matrix[position, first + column]
            for column in range(width):
                result[row, first + column] += row_sum[column]
