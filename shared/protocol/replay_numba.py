"""Replay compiled by numba: a block of the state stays in cache while many seeds are added to it.

The kernels release Python's lock and run on plain threads, each on a separate range of blocks.
Numba's own thread pools are not used: one of them aborts when two threads call it, the other aborts
after a fork. Kernels are compiled at the first call and cached on disk.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import config, njit
from numpy.typing import NDArray

from samara.shared.errors import ReplayError
from samara.shared.protocol.directions import (
    Distribution,
    Domain,
    OrthogonalRows,
    check_whole,
    orthogonal_rows,
    orthogonal_signs,
)
from samara.shared.protocol.normal_table import NORMAL_TABLE

_NORMALS_PER_BLOCK = 2048
_SIGNS_PER_BLOCK = 8192
_SEEDS_AT_ONCE = 4
_COUNTERS_AT_ONCE = 8
_WORK_PER_THREAD = 2**21
"""Least work for which a thread is started, in elements times seeds. With less work, starting it
takes longer than it saves."""

_DIRECTION = np.uint64(Domain.DIRECTION)
_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_INCREMENT_0, _INCREMENT_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW_WORD, _WORD_BITS = np.uint64(0xFFFFFFFF), np.uint64(32)
_LOW_HALF, _HALF_BITS = np.uint32(0xFFFF), np.uint32(16)
_NOTHING = np.int64(0)

_compiled = njit(nogil=True, cache=True)
_inlined = njit(nogil=True, cache=True, inline="always")


class NumbaBackend:
    """A `replay.Backend` that runs on all cores, or on a given number of threads.

    Attributes:
        threads: largest number of threads in a call.
    """

    name = "numba"

    def __init__(self, threads: int = 0) -> None:
        """Create the backend; its kernels are compiled at their first call.

        Args:
            threads: largest number of threads in a call. 0 means NUMBA_NUM_THREADS, which is one
                per core by default.

        Raises:
            ReplayError: if the number is negative.
        """
        if threads < 0:
            raise ReplayError(f"replay cannot run on {threads} threads; use 0 for one per core")
        self.threads = threads or int(config.NUMBA_NUM_THREADS)

    def fold(
        self,
        state: NDArray[np.int64],
        seeds: NDArray[np.uint64],
        coefficients: NDArray[np.int64],
        distribution: Distribution,
    ) -> None:
        """Add Σ c·z to the state in place."""
        if distribution == "orthogonal":
            check_whole(len(state), 0)
            named, kinds, signs = _orthogonal(seeds, len(state))
            _fold_rows(state, coefficients, *named[2:], kinds, signs)
            return

        def fold(first: int, last: int) -> None:
            if distribution == "gaussian":
                _fold_normals(state, seeds, coefficients, NORMAL_TABLE, first, last)
            else:
                _fold_signs(state, seeds, coefficients, first, last)

        self._over_blocks(fold, len(seeds), len(state), distribution)

    def directions(
        self, seeds: NDArray[np.uint64], count: int, distribution: Distribution, first: int = 0
    ) -> NDArray[np.int16]:
        """Return the directions of n seeds from element `first` on, int16 [n, count]."""
        if distribution == "orthogonal":
            check_whole(count, first)
            rows = np.zeros((len(seeds), count), np.int16)
            named, kinds, signs = _orthogonal(seeds, count)
            _fill_rows(rows, *named[2:], kinds, signs)
            return rows
        z = np.empty((len(seeds), count), np.int16)

        def fill(begin: int, end: int) -> None:
            if distribution == "gaussian":
                _fill_normals(z, seeds, NORMAL_TABLE, first // _NORMALS_PER_BLOCK, begin, end)
            else:
                _fill_signs(z, seeds, first // _SIGNS_PER_BLOCK, begin, end)

        self._over_blocks(fill, len(seeds), count, distribution)
        return z

    def _over_blocks(
        self, work: Callable[[int, int], None], seeds: int, count: int, distribution: Distribution
    ) -> None:
        """Divide all blocks into ranges, and call `work` on each range in its own thread."""
        size = _NORMALS_PER_BLOCK if distribution == "gaussian" else _SIGNS_PER_BLOCK
        blocks = -(-count // size)
        threads = max(1, min(self.threads, blocks, seeds * count // _WORK_PER_THREAD))
        if threads == 1:
            work(0, blocks)
            return
        bounds = [blocks * thread // threads for thread in range(threads + 1)]
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, bounds[:-1], bounds[1:]))


def _orthogonal(
    seeds: NDArray[np.uint64], count: int
) -> tuple[OrthogonalRows, NDArray[np.int64], NDArray[np.int8]]:
    """Return the rows of orthogonal sets that n seeds select, and the signs of these sets.

    Returns:
        The rows.
        The index of each row's signs, int64 [n].
        The signs of every selected set, int8 [sets, d].
    """
    named = orthogonal_rows(seeds, count)
    pairs = zip(named.sets.tolist(), named.cycles.tolist(), strict=True)
    numbers: dict[tuple[int, int], int] = {}
    kinds = [numbers.setdefault(pair, len(numbers)) for pair in pairs]
    signs = np.empty((len(numbers), count), np.int8)
    for row, (key, cycle) in zip(signs, numbers, strict=True):
        row[:] = orthogonal_signs(key, cycle, count)
    return named, np.array(kinds, np.int64), signs


@_inlined
def _parity(bits):
    """Return the parity of the bits of a number below 2³²."""
    for half in (16, 8, 4, 2, 1):
        bits ^= bits >> half
    return bits & 1


@_compiled
def _fold_rows(state, coefficients, rows, begins, sizes, scales, kinds, signs):
    """Add Σ c·z to the state for rows z of orthogonal sets; the signs are int8 [sets, d]."""
    for i in range(len(rows)):
        factor, begin, row, kind = coefficients[i] * scales[i], begins[i], rows[i], kinds[i]
        for j in range(sizes[i]):
            sign = signs[kind, begin + j] * (1 - 2 * _parity(row & j))
            state[begin + j] += factor * sign


@_compiled
def _fill_rows(z, rows, begins, sizes, scales, kinds, signs):
    """Write rows of orthogonal sets into z, int16 [n, d]; z must hold zeros."""
    for i in range(len(rows)):
        begin, row, kind = begins[i], rows[i], kinds[i]
        for j in range(sizes[i]):
            sign = signs[kind, begin + j] * (1 - 2 * _parity(row & j))
            z[i, begin + j] = scales[i] * sign


@_inlined
def _random_words(first, seed, words):
    """Run Philox4x32-10 on eight counters from `first` on, in the domain of directions.

    With eight counters at once the compiler can use vector instructions, and the processor can run
    them during table look-ups. Words are stored in 64 bits, because the products need 64 bits.

    Args:
        first: uint64.
        seed: uint64.
        words: output, uint32 [4, 8].
    """
    for j in range(_COUNTERS_AT_ONCE):
        c0, c1, c2, c3 = first + np.uint64(j), np.uint64(0), _DIRECTION, np.uint64(0)
        k0, k1 = seed & _LOW_WORD, seed >> _WORD_BITS
        for _ in range(10):
            product0, product1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
            c0 = (product1 >> _WORD_BITS) ^ c1 ^ k0
            c1 = product1 & _LOW_WORD
            c2 = (product0 >> _WORD_BITS) ^ c3 ^ k1
            c3 = product0 & _LOW_WORD
            k0 = (k0 + _INCREMENT_0) & _LOW_WORD
            k1 = (k1 + _INCREMENT_1) & _LOW_WORD
        words[0, j] = np.uint32(c0)
        words[1, j] = np.uint32(c1)
        words[2, j] = np.uint32(c2)
        words[3, j] = np.uint32(c3)


@_inlined
def _normals_of_block(block, seed, table, words, z, row, count):
    """Write the first `count` normal numbers of a block into a row of z, int16 [n, 2048].

    The rest of the row is undefined. ``words`` [2, 4, 8] is scratch memory. Each iteration computes
    the next random words before it looks up the previous ones, so that the processor overlaps
    multiplications and look-ups. The last computed words are unused.
    """
    first = np.uint64(256 * block)
    turns = -(-min(count, 256) // _COUNTERS_AT_ONCE)
    used_words = -(-count // 512)
    _random_words(first, seed, words[0])
    for turn in range(1, turns + 1):
        _random_words(first + np.uint64(_COUNTERS_AT_ONCE * turn), seed, words[turn & 1])
        last_words = words[(turn - 1) & 1]
        for w in range(used_words):
            at = 512 * w + _COUNTERS_AT_ONCE * (turn - 1)
            for i in range(_COUNTERS_AT_ONCE):
                word = last_words[w, i]
                z[row, at + i] = table[word & _LOW_HALF]
                z[row, at + 256 + i] = table[word >> _HALF_BITS]


@_inlined
def _words_of_block(block, seed, words, sign_words, count):
    """Write into `words`, uint64 [256], the random words of a block's first `count` signs."""
    for j in range(0, min(count, 64), _COUNTERS_AT_ONCE):
        _random_words(np.uint64(64 * block + j), seed, words)
        for w in range(4):
            for i in range(_COUNTERS_AT_ONCE):
                sign_words[64 * w + j + i] = np.uint64(words[w, i])


@_inlined
def _common_shift(coefficients):
    """Return the number of low bits that are zero in all coefficients; 0 if all are zero."""
    bits, shift = np.int64(0), 0
    for coefficient in coefficients:
        bits |= coefficient
    while bits != 0 and bits & 1 == 0:
        bits >>= 1
        shift += 1
    return shift


@_compiled
def _fold_normals(state, seeds, coefficients, table, first, last):
    """Add Σ c·z to the state on the blocks first … last − 1.

    Only products with 32-bit factors vectorize. Coefficients of four seeds are therefore split as
    (low + high·2³²)·2^shift, where 2^shift is their largest common power of two. For the
    coefficients of a single group, the high parts are 0.
    """
    words = np.empty((2, 4, _COUNTERS_AT_ONCE), np.uint32)
    z = np.zeros((_SEEDS_AT_ONCE, _NORMALS_PER_BLOCK), np.int16)
    digits = np.empty((2, _SEEDS_AT_ONCE), np.int32)
    for block in range(first, last):
        part = state[_NORMALS_PER_BLOCK * block : _NORMALS_PER_BLOCK * (block + 1)]
        for start in range(0, len(seeds), _SEEDS_AT_ONCE):
            some = coefficients[start : start + _SEEDS_AT_ONCE]
            shift = _common_shift(some)
            digits[:] = 0
            for i in range(len(some)):
                digits[0, i] = np.int32(some[i] >> shift)
                digits[1, i] = np.int32(((some[i] >> shift) - np.int64(digits[0, i])) >> 32)
                _normals_of_block(block, seeds[start + i], table, words, z, i, len(part))
            for digit in range(2):
                if digits[digit].any():
                    c0, c1, c2, c3 = (
                        digits[digit, 0],
                        digits[digit, 1],
                        digits[digit, 2],
                        digits[digit, 3],
                    )
                    scale = shift + 32 * digit
                    for j in range(len(part)):
                        part[j] += (
                            np.int64(c0) * np.int64(z[0, j])
                            + np.int64(c1) * np.int64(z[1, j])
                            + np.int64(c2) * np.int64(z[2, j])
                            + np.int64(c3) * np.int64(z[3, j])
                        ) << scale


@_compiled
def _fold_signs(state, seeds, coefficients, first, last):
    """Add Σ c·z to the state on the blocks first … last − 1.

    z is ±1, so the sum is computed as 2·(Σ c over set bits) − Σ c.
    """
    words = np.empty((4, _COUNTERS_AT_ONCE), np.uint32)
    bits = np.zeros((_SEEDS_AT_ONCE, 256), np.uint64)
    c = np.zeros(_SEEDS_AT_ONCE, np.int64)
    total = np.empty(_SIGNS_PER_BLOCK, np.int64)
    all_coefficients = coefficients.sum()
    for block in range(first, last):
        part = state[_SIGNS_PER_BLOCK * block : _SIGNS_PER_BLOCK * (block + 1)]
        total[:] = 0
        for start in range(0, len(seeds), _SEEDS_AT_ONCE):
            c[:] = 0
            for i in range(min(_SEEDS_AT_ONCE, len(seeds) - start)):
                c[i] = coefficients[start + i]
                _words_of_block(block, seeds[start + i], words, bits[i], len(part))
            c0, c1, c2, c3 = c[0], c[1], c[2], c[3]
            for t in range(-(-len(part) // 256)):
                bit = np.uint64(1) << np.uint64(t)
                sums = total[256 * t : 256 * (t + 1)]
                for k in range(len(sums)):
                    sums[k] += (
                        (c0 if bits[0, k] & bit else _NOTHING)
                        + (c1 if bits[1, k] & bit else _NOTHING)
                        + (c2 if bits[2, k] & bit else _NOTHING)
                        + (c3 if bits[3, k] & bit else _NOTHING)
                    )
        for j in range(len(part)):
            part[j] += ((total[j] << 1) - all_coefficients) << 11


@_compiled
def _fill_normals(z, seeds, table, skipped, first, last):
    """Write normal numbers into the blocks first … last − 1 of z, int16 [n, d].

    The first block of z is block `skipped` of the directions.
    """
    words = np.empty((2, 4, _COUNTERS_AT_ONCE), np.uint32)
    whole = np.empty((1, _NORMALS_PER_BLOCK), np.int16)
    for row in range(len(seeds)):
        for block in range(first, last):
            part = z[row, _NORMALS_PER_BLOCK * block : _NORMALS_PER_BLOCK * (block + 1)]
            _normals_of_block(skipped + block, seeds[row], table, words, whole, 0, len(part))
            for j in range(len(part)):
                part[j] = whole[0, j]


@_compiled
def _fill_signs(z, seeds, skipped, first, last):
    """Write random signs into the blocks first … last − 1 of z, int16 [n, d].

    The first block of z is block `skipped` of the directions.
    """
    words = np.empty((4, _COUNTERS_AT_ONCE), np.uint32)
    bits = np.empty(256, np.uint64)
    for row in range(len(seeds)):
        for block in range(first, last):
            part = z[row, _SIGNS_PER_BLOCK * block : _SIGNS_PER_BLOCK * (block + 1)]
            _words_of_block(skipped + block, seeds[row], words, bits, len(part))
            for t in range(-(-len(part) // 256)):
                signs = part[256 * t : 256 * (t + 1)]
                for k in range(len(signs)):
                    signs[k] = 2048 if bits[k] >> np.uint64(t) & np.uint64(1) else -2048
