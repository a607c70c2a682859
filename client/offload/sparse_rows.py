"""Products of a sparse projector and a dense matrix, compiled by numba for the CPU.

Columns are processed in blocks, so that the output stays in a core's cache. Every number is summed
in the same order for any block size. Inner loops run over slices, because the compiler does not
vectorize loops with two indices. Such loops take 3 to 8 times as long as loops over slices. The
kernels release Python's lock and use one thread. Compiled kernels are cached in ``__pycache__``
under this module's name.
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
            source = matrix[row, first:last]
            for index in range(positions.shape[1]):
                target, value = result[positions[row, index], first:last], values[row, index]
                for column in range(source.shape[0]):
                    target[column] += value * source[column]


@_compiled
def add_lifted(
    positions: NDArray[np.int64],
    values: NDArray[np.float32],
    matrix: NDArray[np.float32],
    result: NDArray[np.float32],
) -> None:
    """Add P·A to a result; each row of P·A is summed completely before the addition.

    Args:
        positions: columns of P's nonzeros, int64 [rows, r].
        values: P's nonzeros, float32 [rows, r].
        matrix: A, float32 [s, columns].
        result: float32 [rows, columns], changed in place.
    """
    columns = matrix.shape[1]
    row_sum = np.empty(_COLUMNS, np.float32)
    for first in range(0, columns, _COLUMNS):
        last = min(first + _COLUMNS, columns)
        for row in range(positions.shape[0]):
            row_sum[: last - first] = 0
            for index in range(positions.shape[1]):
                source, value = matrix[positions[row, index], first:last], values[row, index]
                for column in range(source.shape[0]):
                    row_sum[column] += value * source[column]
            target = result[row, first:last]
            for column in range(target.shape[0]):
                target[column] += row_sum[column]
