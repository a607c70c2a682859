"""Replay on a GPU by Triton kernels. Each program holds a block of the state in registers.

This module needs the extra ``samara-fl[cuda]``. Triton's built-in Philox gives the same bits as
`directions.philox4x32`. Triton launches kernels on the thread's current device, so the functions
make the tensors' device current.
"""

import torch
import triton
import triton.language as tl

from samara.shared.protocol.directions import Distribution

_SHAPES = {
    "gaussian": {"SIGNS": False, "COUNTERS": 256, "ROWS": 2, "WORD": 512},
    "rademacher": {"SIGNS": True, "COUNTERS": 64, "ROWS": 32, "WORD": 64},
}
"""Shape of a block for each distribution.

COUNTERS is the number of Philox counters. ROWS is the number of elements from one 32-bit word of a
counter. WORD is the distance, in elements, between the elements of consecutive words.
"""


@triton.jit
def _words(seed, block, COUNTERS: tl.constexpr):
    """Compute Philox4x32-10 of a block's counters (i, 0, 1, 0); 1 is the domain of directions."""
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
    """Write one block of one direction. The first `skipped` blocks of a direction are left out."""
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


def fold(
    seeds: torch.Tensor,
    coefficients: torch.Tensor,
    table: torch.Tensor,
    count: int,
    distribution: Distribution,
) -> torch.Tensor:
    """Return Σ c·z(seed) modulo 2⁶⁴ on the table's GPU, int64 [count].

    Args:
        seeds: bits of the seeds, int64 [n].
        coefficients: coefficients c, int64 [n], unit 2⁻⁴⁰.
        table: `samara.shared.protocol.normal_table.NORMAL_TABLE`, int16 [65536].
        count: number of elements.
        distribution: ``gaussian`` or ``rademacher``.
    """
    total = torch.empty(count, dtype=torch.int64, device=table.device)
    grid = (_blocks(count, distribution),)
    with torch.cuda.device_of(table):
        _fold[grid](total, seeds, coefficients, table, len(seeds), count, **_SHAPES[distribution])
    return total


def directions(
    seeds: torch.Tensor, table: torch.Tensor, count: int, distribution: Distribution, first: int
) -> torch.Tensor:
    """Return the directions of n seeds from element `first` on, int16 [n, count]; see `fold`."""
    z = torch.empty((len(seeds), count), dtype=torch.int16, device=table.device)
    if z.numel():
        grid = (_blocks(count, distribution), len(seeds))
        skipped = _blocks(first, distribution)
        with torch.cuda.device_of(table):
            _fill[grid](z, seeds, table, count, skipped, **_SHAPES[distribution])
    return z


def _blocks(count: int, distribution: Distribution) -> int:
    shape = _SHAPES[distribution]
    return -(-count // (4 * shape["ROWS"] * shape["COUNTERS"]))
