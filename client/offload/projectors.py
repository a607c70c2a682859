"""Sparse projectors P and Q, whose columns span a weight matrix's training subspace.

LSP-Offload (Chen et al. 2024), section 4.1 and definition 1: every row of P, m × s, and of Q, n ×
s, has r nonzeros. Both projectors take O((m + n)·r) memory, regardless of the subspace's size s.
"""

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class SparseProjector:
    """A matrix of `rows` × `size` numbers, with r nonzeros in every row.

    Attributes:
        positions: columns of the nonzeros, int64 [rows, r], distinct and ascending in every row.
        values: nonzeros, float32 [rows, r].
        size: number of columns, the size s of the subspace.
    """

    positions: Tensor
    values: Tensor
    size: int

    @classmethod
    def random(
        cls, rows: int, size: int, nonzeros: int, seed: tuple[int, ...], device: torch.device
    ) -> Self:
        """Draw a projector with random positions and normal values of standard deviation 1/√r.

        P·Pᵀ is the identity in expectation (LSP-Offload, section 4.1).

        Args:
            rows: number of rows, a side of the weight matrix.
            size: number of columns s.
            nonzeros: number r of nonzeros per row; all columns if there are fewer columns.
            seed: numbers that determine the draw.
            device: torch device of the projector.
        """
        count = min(nonzeros, size)
        generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))
        ranks = generator.random((rows, size), dtype=np.float32)
        positions = np.sort(np.argpartition(ranks, count - 1, axis=1)[:, :count], axis=1)
        values = generator.standard_normal((rows, count), dtype=np.float32) / math.sqrt(count)
        return cls(
            torch.from_numpy(positions.astype(np.int64)).to(device),
            torch.from_numpy(values.astype(np.float32)).to(device),
            size,
        )

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.positions)

    @cached_property
    def csr(self) -> Tensor:
        """The matrix in torch's CSR format, sparse float32 [rows, size]."""
        ends = torch.arange(0, self.values.numel() + 1, self.values.shape[1])
        return _csr(ends, self.positions.flatten(), self.values.flatten(), (self.rows, self.size))

    @cached_property
    def transposed_csr(self) -> Tensor:
        """The transposed matrix in torch's CSR format, sparse float32 [size, rows]."""
        columns, order = self.positions.flatten().sort(stable=True)
        ends = torch.searchsorted(columns, torch.arange(self.size + 1, device=columns.device))
        values = self.values.flatten()[order]
        return _csr(ends, order // self.values.shape[1], values, (self.size, self.rows))

    def dense(self) -> Tensor:
        """Return the dense matrix, float32 [rows, size]."""
        zeros = self.values.new_zeros(self.rows, self.size)
        return zeros.scatter(1, self.positions, self.values)


@dataclass(frozen=True)
class ProjectorPair:
    """The projectors of a weight matrix W, m × n.

    None stands for the identity. A side of length s or less is not projected. Zero-Offload projects
    neither side.

    Attributes:
        left: P, m × s.
        right: Q, n × s.
    """

    left: SparseProjector | None = None
    right: SparseProjector | None = None

    @classmethod
    def random(
        cls,
        shape: tuple[int, int],
        size: int,
        nonzeros: int,
        seed: tuple[int, ...],
        device: torch.device,
    ) -> Self:
        """Draw the projectors of a weight matrix.

        Args:
            shape: shape (m, n) of the weight matrix.
            size: size s of the subspace.
            nonzeros: number r of nonzeros per row.
            seed: numbers that determine the draw.
            device: torch device of the projectors.
        """
        sides = (
            SparseProjector.random(rows, size, nonzeros, (*seed, side), device)
            if rows > size
            else None
            for side, rows in enumerate(shape)
        )
        return cls(*sides)

    def subspace(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a weight's compressed gradient: s × s if both sides exceed s.

        Args:
            shape: shape of the weight.
        """
        if self.left is None and self.right is None:
            return shape
        rows, columns = shape
        return (
            rows if self.left is None else self.left.size,
            columns if self.right is None else self.right.size,
        )


def _csr(ends: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            ends.to(values.device), columns, values, shape, check_invariants=False
        )
