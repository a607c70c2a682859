"""Replay on a GPU by a Triton kernel whose programs hold blocks of the state in registers.

This module needs the extra ``samara-fl[cuda]``. Triton's built-in Philox gives the same bits as
`directions.philox4x32`.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from samara.shared.protocol.directions import Distribution
from samara.shared.protocol.normal_table import NORMAL_TABLE
from samara.shared.protocol.replay import Backend

_SHAPES = {
    "gaussian": {"SIGNS": False, "COUNTERS": 256, "ROWS": 2, "WORD": 512},
    "rademacher": {"SIGNS": True, "COUNTERS": 64, "ROWS": 32, "WORD": 64},
}
"""Shape of a block for each distribution. COUNTERS is the number of Philox counters, ROWS the
number of elements from a counter's word, and WORD the distance between words in elements."""


@triton.jit
def _words(seed, block, COUNTERS: tl.constexpr):
    """Compute Philox4x32-10 of a block's counters (counter, 0, 1, 0), where 1 is the domain."""
    counter = (block * COUNTERS + tl.arange(0, COUNTERS)).to(tl.uint32)
    zero = counter * 0
    return tl.philox(seed, counter, zero, zero + 1, zero)


@triton.jit
def _elements(word, table, SIGNS: tl.constexpr, ROWS: tl.constexpr):
    """Return the elements of one word of each counter, int16 [ROWS, COUNTERS]."""
    row = tl.arange(0, ROWS)[:, None].to(tl.uint32)
    if SIGNS:
        return ((word[None, :] >> row) & 1).to(tl.int16) * 4096 - 2048
    else:
        return tl.load(table + ((word[None, :] >> (16 * row)) & 0xFFFF).to(tl.int32))


@triton.jit
def _element_indices(block, COUNTERS: tl.constexpr, ROWS: tl.constexpr):
    """Return the indices of the elements of word 0, int32 [ROWS, COUNTERS]."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COUNTERS)[None, :]
    return block * (4 * ROWS * COUNTERS) + 256 * row + column


@triton.jit
def _fold(
    total,
    seeds,
    coefficients,
    table,
    n,
    d,
    SIGNS: tl.constexpr,
    COUNTERS: tl.constexpr,
    ROWS: tl.constexpr,
    WORD: tl.constexpr,
):
    """Compute a block of Σ c·z over n seeds, for a state of d elements."""
    block = tl.program_id(0)
    total0 = tl.zeros((ROWS, COUNTERS), tl.int64)
    total1, total2, total3 = total0, total0, total0
    for i in range(n):
        c = tl.load(coefficients + i)
        w0, w1, w2, w3 = _words(tl.load(seeds + i), block, COUNTERS)
        total0 += c * _elements(w0, table, SIGNS, ROWS).to(tl.int64)
        total1 += c * _elements(w1, table, SIGNS, ROWS).to(tl.int64)
        total2 += c * _elements(w2, table, SIGNS, ROWS).to(tl.int64)
        total3 += c * _elements(w3, table, SIGNS, ROWS).to(tl.int64)
    index = _element_indices(block, COUNTERS, ROWS)
    tl.store(total + index, total0, index < d)
    index += WORD
    tl.store(total + index, total1, index < d)
    index += WORD
    tl.store(total + index, total2, index < d)
    index += WORD
    tl.store(total + index, total3, index < d)


@triton.jit
def _fill(
    z,
    seeds,
    table,
    d,
    skipped,
    SIGNS: tl.constexpr,
    COUNTERS: tl.constexpr,
    ROWS: tl.constexpr,
    WORD: tl.constexpr,
):
    """Compute one block of one direction, counted from the first block that is not skipped."""
    block, i = tl.program_id(0), tl.program_id(1)
    w0, w1, w2, w3 = _words(tl.load(seeds + i), skipped + block, COUNTERS)
    index = _element_indices(block, COUNTERS, ROWS)
    direction = z + i.to(tl.int64) * d
    tl.store(direction + index, _elements(w0, table, SIGNS, ROWS), index < d)
    index += WORD
    tl.store(direction + index, _elements(w1, table, SIGNS, ROWS), index < d)
    index += WORD
    tl.store(direction + index, _elements(w2, table, SIGNS, ROWS), index < d)
    index += WORD
    tl.store(direction + index, _elements(w3, table, SIGNS, ROWS), index < d)


class CudaBackend:
    """The replay backend on a GPU; see `samara.shared.protocol.replay.Backend`.

    Triton launches kernels on the thread's current device, so the backend makes the tensors' device
    current. Another backend computes orthogonal directions, because a round has only a few of them.

    Attributes:
        device: torch device of the GPU.
    """

    name = "cuda"

    def __init__(self, device: torch.device, others: Backend) -> None:
        """Create the backend.

        Args:
            device: torch device of the GPU.
            others: backend that computes orthogonal directions.
        """
        self.device, self._others = device, others
        self._table = torch.from_numpy(NORMAL_TABLE.copy()).to(device)

    def fold(
        self,
        state: NDArray[np.int64],
        seeds: NDArray[np.uint64],
        coefficients: NDArray[np.int64],
        distribution: Distribution,
    ) -> None:
        """Compute Σ c·z on the GPU, and add it to the state in place."""
        if distribution == "orthogonal":
            self._others.fold(state, seeds, coefficients, distribution)
            return
        total = torch.empty(len(state), dtype=torch.int64, device=self.device)
        factors = torch.from_numpy(coefficients).to(self.device)
        grid = (_blocks(len(state), distribution),)
        arguments = total, self._bits(seeds), factors, self._table, len(seeds), len(state)
        with torch.cuda.device_of(self._table):
            _fold[grid](*arguments, **_SHAPES[distribution])
        state += total.cpu().numpy()

    def directions(
        self, seeds: NDArray[np.uint64], count: int, distribution: Distribution, first: int = 0
    ) -> NDArray[np.int16]:
        """Return the directions of n seeds from element `first` on, int16 [n, count]."""
        whole: NDArray[np.int16] = (
            self.draw_on_device(seeds, count, distribution, first).cpu().numpy()
        )
        return whole

    def draw_on_device(
        self, seeds: NDArray[np.uint64], count: int, distribution: Distribution, first: int = 0
    ) -> torch.Tensor:
        """Return the result of `directions` as a tensor on the GPU."""
        if distribution == "orthogonal":
            made = self._others.directions(seeds, count, distribution, first)
            return torch.from_numpy(made).to(self.device)
        z = torch.empty((len(seeds), count), dtype=torch.int16, device=self.device)
        if z.numel():
            grid = (_blocks(count, distribution), len(seeds))
            skipped = _blocks(first, distribution)
            shape = _SHAPES[distribution]
            with torch.cuda.device_of(self._table):
                _fill[grid](z, self._bits(seeds), self._table, count, skipped, **shape)
        return z

    def _bits(self, seeds: NDArray[np.uint64]) -> torch.Tensor:
        return torch.from_numpy(seeds.view(np.int64)).to(self.device)


def _blocks(count: int, distribution: Distribution) -> int:
    shape = _SHAPES[distribution]
    return -(-count // (4 * shape["ROWS"] * shape["COUNTERS"]))
