"""Compression of gradients and decompression of updates by sparse projectors.

A CPU uses numba kernels, which were the fastest in docs/measurements/lsp.md. Other devices use
torch's sparse matrix products. Both implementations take O(m·n·r) operations for an m × n weight
matrix.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samara.client.offload.projectors import ProjectorPair, SparseProjector
from samara.client.offload.sparse_rows import add_lifted, add_projected

_ROUNDED_AT_ONCE = 2**22


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
        gradient: G, float32 [m, n]; of any shape if both projectors are the identity.

    Returns:
        float32 [s, s]; G itself if both projectors are the identity.
    """
    if projectors.left is not None:
        gradient = project(projectors.left, gradient)
    if projectors.right is not None:
        gradient = project(projectors.right, gradient.T).T.contiguous()
    return gradient


def decompress(projectors: ProjectorPair, change: Tensor) -> Tensor:
    """Return P·Δ·Qᵀ, the update of the whole weight matrix (LSP-Offload, algorithm 2).

    Args:
        projectors: P and Q.
        change: Δ, float32 [s, s].

    Returns:
        float32 [m, n]; Δ itself if both projectors are the identity.
    """
    change = _lift_right(projectors, change)
    return change if projectors.left is None else lift(projectors.left, change)


@torch.no_grad()
def add_decompressed(
    projectors: ProjectorPair, change: Tensor, weight: Tensor, seed: int = 0
) -> None:
    """Set W ← W + P·Δ·Qᵀ in place.

    On a CPU the function needs no float32 temporary of W's size. A bfloat16 sum is rounded
    stochastically. The rounding is exact in expectation, so updates smaller than a weight's last
    bit add up.

    Args:
        projectors: P and Q.
        change: Δ, float32 [s, s]; of W's shape if both projectors are the identity.
        weight: W, float32 or bfloat16 [m, n]; of any shape if both projectors are the identity.
        seed: seed of the rounding, different for every update.
    """
    if weight.dtype == torch.bfloat16:
        _add_rounded(weight, decompress(projectors, change), seed)
        return
    change = _lift_right(projectors, change)
    if projectors.left is None:
        weight.add_(change)
    else:
        _add_lifted(projectors.left, change, weight)


def _add_rounded(weight: Tensor, change: Tensor, seed: int) -> None:
    """Add float32 numbers to bfloat16 numbers with stochastic rounding, part by part.

    A bfloat16 number is the upper half of a float32 number. To round stochastically, a random
    lower half is added to the sum, and then the lower half is cut off.
    """
    generator = torch.Generator(weight.device).manual_seed(seed)
    rows = max(1, _ROUNDED_AT_ONCE * len(weight) // max(1, weight.numel()))
    parts = zip(torch.split(weight, rows), torch.split(change, rows), strict=True)
    for part, added in parts:
        bits = (part.float() + added).view(torch.int32)
        bits += torch.randint(
            2**16, bits.shape, generator=generator, dtype=torch.int32, device=weight.device
        )
        part.copy_((bits & -(2**16)).view(torch.float32))


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
