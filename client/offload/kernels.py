"""Compression of gradients and decompression of updates by sparse projectors.

On a CPU numba's kernels, which are the fastest that were tried (docs/measurements/lsp.md); on other
devices torch's products with sparse matrices. Both take O(m·n·r) operations for a weight matrix
of m × n.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samara.client.offload.projectors import ProjectorPair, SparseProjector
from samara.client.offload.sparse_rows import add_lifted, add_projected


def project(projector: SparseProjector, matrix: Tensor) -> Tensor:
    """Return Pᵀ·A: every row of A is added to r rows of the result.

    Args:
        projector: P, rows × s.
        matrix: A, float32 [rows, columns].

    Returns:
        float32 [s, columns].
    """
    if not matrix.is_cpu:
        return projector.transposed_csr @ matrix
    result = matrix.new_zeros(projector.size, matrix.shape[1])
    add_projected(*_arrays(projector, matrix), result.numpy())
    return result


def lift(projector: SparseProjector, matrix: Tensor) -> Tensor:
    """Return P·A: every row of the result is a sum of r rows of A.

    Args:
        projector: P, rows × s.
        matrix: A, float32 [s, columns].

    Returns:
        float32 [rows, columns].
    """
    result = matrix.new_zeros(projector.rows, matrix.shape[1])
    _add_lifted(projector, matrix, result)
    return result


def compress(projectors: ProjectorPair, gradient: Tensor) -> Tensor:
    """Return Ĝ = Pᵀ·G·Q (LSP-Offload, algorithm 2).

    Args:
        projectors: P and Q.
        gradient: G, float32 [m, n], or any shape without projectors.

    Returns:
        float32 [s, s]; G itself where both projectors are the identity.
    """
    if projectors.left is not None:
        gradient = project(projectors.left, gradient)
    if projectors.right is not None:
        gradient = project(projectors.right, gradient.T).T.contiguous()
    return gradient


def decompress(projectors: ProjectorPair, change: Tensor) -> Tensor:
    """Return P·Δ·Qᵀ, an update of the whole weight matrix (LSP-Offload, algorithm 2).

    Args:
        projectors: P and Q.
        change: Δ, float32 [s, s].

    Returns:
        float32 [m, n]; Δ itself where both projectors are the identity.
    """
    change = _lift_right(projectors, change)
    return change if projectors.left is None else lift(projectors.left, change)


@torch.no_grad()
def add_decompressed(projectors: ProjectorPair, change: Tensor, weight: Tensor) -> None:
    """Set W ← W + P·Δ·Qᵀ in place; on a CPU without a matrix of W's size beside it.

    Args:
        projectors: P and Q.
        change: Δ, float32 [s, s], or W's shape without projectors.
        weight: W, float32 [m, n], or any shape without projectors.
    """
    change = _lift_right(projectors, change)
    if projectors.left is None:
        weight.add_(change)
    else:
        _add_lifted(projectors.left, change, weight)


def _lift_right(projectors: ProjectorPair, change: Tensor) -> Tensor:
    return change if projectors.right is None else lift(projectors.right, change.T).T


def _add_lifted(projector: SparseProjector, matrix: Tensor, result: Tensor) -> None:
    if result.is_cpu and result.is_contiguous():
        add_lifted(*_arrays(projector, matrix), result.detach().numpy())
        torch.autograd.graph.increment_version(result)
    else:
        result.addmm_(projector.csr, matrix)


def _arrays(
    projector: SparseProjector, matrix: Tensor
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    return (
        projector.positions.numpy(),
        projector.values.numpy(),
        matrix.detach().contiguous().numpy(),
    )
