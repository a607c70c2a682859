"""Directions drawn inside an exported graph, bit for bit those of `shared.directions`.

An inference engine for phones has no seedable generator. So Philox is spelled out in int64
additions, products, shifts and masks, which every runtime has; 32-bit words live in the low half of
an int64. All queries are drawn by one flat call, because broadcasts are slow in portable kernels.
"""

import torch
from torch import Tensor

from shared.directions import DIRECTION_BITS, Distribution, Domain
from shared.normal_table import NORMAL_TABLE

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_LOW_WORD = 0xFFFFFFFF
_COUNTERS = {"gaussian": 256, "rademacher": 64}
_ELEMENTS = {"gaussian": 2048, "rademacher": 8192}


def normal_table() -> Tensor:
    """The table of normal quantiles, int16 [65,536], to be a constant of the program."""
    return torch.from_numpy(NORMAL_TABLE.copy())


def directions(seeds: Tensor, count: int, distribution: Distribution, table: Tensor) -> Tensor:
    """Directions of n seeds.

    Args:
        seeds: int64 [n], the bits of the 64-bit seeds.
        count: elements of each.
        distribution: of them.
        table: `normal_table`.

    Returns:
        int64 [n, count]; multiply by 2⁻¹¹.
    """
    blocks = -(-count // _ELEMENTS[distribution])
    per_block = _COUNTERS[distribution]
    words = _words(seeds, blocks * per_block)
    by_block = [word.view(-1, blocks, per_block) for word in words]
    if distribution == "gaussian":
        halves = [half for word in by_block for half in (word & 0xFFFF, _shifted(word, 16))]
        uniform = torch.stack(halves, 2).view(-1)
        z = table.index_select(0, uniform).to(torch.int64)
    else:
        row = torch.cat(by_block, 2)
        bits = torch.stack([_shifted(row, bit) & 1 for bit in range(32)], 2)
        z = bits * (2 << DIRECTION_BITS) - (1 << DIRECTION_BITS)
    return z.view(len(seeds), -1)[:, :count]


def _words(seeds: Tensor, counters: int) -> list[Tensor]:
    """The four random words of every counter, word by word, each int64 [n · counters]."""
    n = len(seeds)
    c0 = torch.arange(counters).repeat(n)
    c1, c2, c3 = (torch.full_like(c0, value) for value in (0, int(Domain.DIRECTION), 0))
    k0, k1 = (
        key[:, None].expand(n, counters).reshape(-1)
        for key in (seeds & _LOW_WORD, _shifted(seeds, 32))
    )
    for _ in range(10):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            _shifted(product1, 32) ^ c1 ^ k0,
            product1 & _LOW_WORD,
            _shifted(product0, 32) ^ c3 ^ k1,
            product0 & _LOW_WORD,
        )
        k0 = (k0 + _KEY_INCREMENTS[0]) & _LOW_WORD
        k1 = (k1 + _KEY_INCREMENTS[1]) & _LOW_WORD
    return [c0, c1, c2, c3]


def _shifted(word: Tensor, bits: int) -> Tensor:
    """A logical shift to the right, of which at most 32 bits are left."""
    return torch.bitwise_right_shift(word, bits) & _LOW_WORD
