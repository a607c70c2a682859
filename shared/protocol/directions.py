"""Directions, seeds and batches as pure functions of 64-bit seeds, by Philox4x32-10.

Philox is the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2,
3" (SC 2011). Its key is a 64-bit seed (low word first). Word 2 of the counter is a domain tag, so
two uses of one seed never share a counter. This module is the readable specification of directions.
Every other backend must give the same bits.
"""

import math
from enum import IntEnum
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import ReplayError
from samara.shared.protocol.normal_table import NORMAL_TABLE

Distribution = Literal["gaussian", "rademacher", "orthogonal"]
Differences = Literal["central", "forward", "components"]
"""Losses from which projected gradients are computed: L₊ and L₋, or L₊ and a common L₀.

With ``components`` a client reports the components of its own update instead of differences.
"""
Gradients = Literal["differences", "exact"]
"""Source of projected gradients: differences of losses, or a backward pass."""

BOTH_SIDES = (1, -1)
"""Signs of the two perturbations along a direction with central differences."""

DIRECTION_BITS = 11
"""Fractional bits of a direction's integers, which are multiples of 2⁻¹¹."""

WHOLE_BLOCKS = 8192
"""Alignment of a part of a direction, in elements.

At each multiple of this number, a block of Philox counters begins in both the Gaussian and the
Rademacher distribution.
"""
MAX_DIRECTION = 2**35
"""Largest number of elements of a direction, limited by the 32-bit counter."""
INDEX_BITS = 24
"""Number of low bits of an orthogonal direction's seed that hold its index. The high 40 bits are a
key."""
MAX_ORTHOGONAL = 1 << INDEX_BITS
"""Largest number of elements of an orthogonal direction."""

_UNIT_ELEMENT, _LARGEST_ELEMENT = 2**DIRECTION_BITS, 2**15 - 1
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_LOW_WORD = np.uint64(0xFFFFFFFF)
_WORD_BITS = np.uint64(32)


class Domain(IntEnum):
    """The purpose of random numbers, stored in word 2 of their Philox counters."""

    DIRECTION = 1
    LORA_A = 2
    BATCH_ORDER = 3
    QUERY_SEED = 4
    ROUND_ROOT = 5
    COHORT = 6
    POOL_SEED = 7
    POOL_ORDER = 8
    PREFIX_TOKEN = 9
    TEXT_TOKEN = 10
    ORTHOGONAL_SIGN = 11


def philox4x32(counter: NDArray[np.uint32], key: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Run ten rounds of Philox4x32.

    Args:
        counter: uint32 [..., 4].
        key: uint32 [..., 2], broadcast against the counter's leading axes.

    Returns:
        uint32 [..., 4], the random words of each counter.
    """
    c0, c1, c2, c3 = (counter[..., word].astype(np.uint64) for word in range(4))
    k0, k1 = (key[..., word].astype(np.uint64) for word in range(2))
    for _ in range(10):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> _WORD_BITS) ^ c1 ^ k0,
            product1 & _LOW_WORD,
            (product0 >> _WORD_BITS) ^ c3 ^ k1,
            product0 & _LOW_WORD,
        )
        k0 = (k0 + np.uint64(_KEY_INCREMENTS[0])) & _LOW_WORD
        k1 = (k1 + np.uint64(_KEY_INCREMENTS[1])) & _LOW_WORD
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3), axis=-1).astype(np.uint32)


def _keys(seeds: NDArray[np.uint64]) -> NDArray[np.uint32]:
    return np.stack([seeds & _LOW_WORD, seeds >> _WORD_BITS], axis=-1).astype(np.uint32)


def _counters(count: int, domain: Domain, first: int = 0) -> NDArray[np.uint32]:
    counter = np.zeros((count, 4), np.uint32)
    counter[:, 0] = np.arange(first, first + count, dtype=np.uint32)
    counter[:, 2] = domain
    return counter


def normals(
    seeds: NDArray[np.uint64], count: int, domain: Domain = Domain.DIRECTION, first: int = 0
) -> NDArray[np.int16]:
    """Return standard normal numbers in units of 2⁻¹¹, in the protocol's order of elements.

    Counters form blocks of 256. Block b covers elements 2048·b to 2048·b + 2047. The low (h = 0) or
    high (h = 1) half of word w of counter 256·b + j is element 2048·b + 512·w + 256·h + j.

    Args:
        seeds: uint64 [n].
        count: numbers per seed.
        domain: purpose of the numbers.
        first: first element, a multiple of 2,048.

    Returns:
        int16 [n, count].
    """
    blocks = -(-count // 2048)
    words = philox4x32(_counters(256 * blocks, domain, first // 8), _keys(seeds)[:, None, :])
    by_block = words.reshape(len(seeds), blocks, 256, 4).transpose(0, 1, 3, 2)
    halves = np.stack([by_block & np.uint32(0xFFFF), by_block >> np.uint32(16)], axis=3)
    return NORMAL_TABLE[halves.reshape(len(seeds), 2048 * blocks)[:, :count]]


def rademacher(seeds: NDArray[np.uint64], count: int, first: int = 0) -> NDArray[np.int16]:
    """Return random signs ±1 in units of 2⁻¹¹, that is ±2048; a set bit gives +1.

    Counters form blocks of 64. Bit t of word w of counter 64·b + j is element 8192·b + 256·t + 64·w
    + j.

    Args:
        seeds: uint64 [n].
        count: signs per seed.
        first: first element, a multiple of 8,192.

    Returns:
        int16 [n, count].
    """
    blocks = -(-count // 8192)
    counters = _counters(64 * blocks, Domain.DIRECTION, first // 128)
    words = philox4x32(counters, _keys(seeds)[:, None, :])
    by_block = words.reshape(len(seeds), blocks, 1, 64, 4).transpose(0, 1, 2, 4, 3)
    bits = (by_block >> np.arange(32, dtype=np.uint32)[:, None, None]) & np.uint32(1)
    signs = bits.reshape(len(seeds), 8192 * blocks)[:, :count].astype(np.int16)
    return (signs << np.int16(12)) - np.int16(2048)


class OrthogonalRows(NamedTuple):
    """The rows of orthogonal sets that n seeds select, before random signs are applied.

    A row is nonzero in a single block of coordinates, where it is a row of a Hadamard matrix.

    Attributes:
        sets: key of each row's set, the upper 40 bits of its seed, uint64 [n].
        cycles: number of each row's set among the sets with the same key, int64 [n].
        rows: number of each row in its block, int64 [n].
        begins: first coordinate of each row's block, int64 [n].
        sizes: number of coordinates of each row's block, a power of two, int64 [n].
        scales: absolute value of each row's nonzero elements, int64 [n].
    """

    sets: NDArray[np.uint64]
    cycles: NDArray[np.int64]
    rows: NDArray[np.int64]
    begins: NDArray[np.int64]
    sizes: NDArray[np.int64]
    scales: NDArray[np.int64]


def orthogonal_rows(seeds: NDArray[np.uint64], count: int) -> OrthogonalRows:
    """Return the rows that seeds select in orthogonal sets of `count` rows.

    A seed consists of a key (upper 40 bits) and an index i (lower 24 bits). It selects the (i div
    d)-th set with that key, and row (i·s) mod d of this set. The stride s is the smallest number
    from ⌊d/φ⌋ on that is coprime to d, where φ is the golden ratio. So seeds with neighbouring
    indices select rows that are far apart. The d coordinates are divided into blocks by the binary
    digits of d, the largest first. An element of a row in a block of m coordinates is ±2048·√(d/m),
    rounded and at most 32,767, so that a row is about as long as a Gaussian direction.

    Args:
        seeds: uint64 [n].
        count: number of elements d, at most `MAX_ORTHOGONAL`.
    """
    index = (seeds & np.uint64(MAX_ORTHOGONAL - 1)).astype(np.int64)
    rows = index % count * orthogonal_stride(count) % count
    sizes = np.array([1 << bit for bit in reversed(range(count.bit_length())) if count >> bit & 1])
    begins = np.append(0, np.cumsum(sizes)[:-1])
    blocks = np.searchsorted(begins, rows, "right") - 1
    scales = np.array([orthogonal_scale(count, int(size)) for size in sizes])
    sets = seeds >> np.uint64(INDEX_BITS)
    return OrthogonalRows(
        sets,
        index // count,
        rows - begins[blocks],
        begins[blocks],
        sizes[blocks],
        scales[blocks],
    )


def orthogonal_stride(count: int) -> int:
    """Return the distance between the rows of neighbouring indices; see `orthogonal_rows`."""
    stride = (count * 40503 >> 16) or 1  # 40503 / 2¹⁶ is 1/φ
    while math.gcd(stride, count) > 1:
        stride += 1
    return stride


def orthogonal_scale(count: int, size: int) -> int:
    """Return the absolute value of an orthogonal row's elements inside its block.

    Args:
        count: number of elements of a row, d.
        size: number of coordinates of the block, m.
    """
    return min(math.isqrt((2 * _UNIT_ELEMENT) ** 2 * count // size) + 1 >> 1, _LARGEST_ELEMENT)


def orthogonal_signs(key: int, cycle: int, count: int) -> NDArray[np.int8]:
    """Return the random sign of every coordinate in a set; a set bit is +1.

    The sign of coordinate 128·j + 32·w + t is bit t of word w of counter j.

    Args:
        key: key of the set, its seed's upper 40 bits.
        cycle: number of the set among the sets with this key.
        count: number of coordinates d.

    Returns:
        int8 [d].
    """
    counters = _counters(-(-count // 128), Domain.ORTHOGONAL_SIGN)
    counters[:, 1] = cycle
    words = philox4x32(counters, _keys(np.array(key, np.uint64)))
    bits = words.ravel()[:, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1)
    return (2 * bits.ravel()[:count].astype(np.int8)) - np.int8(1)


def orthogonal(seeds: NDArray[np.uint64], count: int) -> NDArray[np.int16]:
    """Return orthogonal directions: the d directions of one set are orthogonal.

    They are rows of Hadamard matrices with a random sign for each coordinate. In Sylvester's
    construction an element's sign is the parity of the bits that row and column have in common.

    Args:
        seeds: uint64 [n]; see `orthogonal_rows`.
        count: number of elements d, at most `MAX_ORTHOGONAL`.

    Returns:
        int16 [n, count] with scale 2⁻¹¹.
    """
    named = orthogonal_rows(seeds, count)
    z = np.zeros((len(seeds), count), np.int16)
    signs: dict[tuple[int, int], NDArray[np.int8]] = {}
    for own, key, cycle, row, begin, size, scale in zip(
        z, *(part.tolist() for part in named), strict=True
    ):
        if (key, cycle) not in signs:
            signs[key, cycle] = orthogonal_signs(key, cycle, count)
        common = np.arange(size, dtype=np.uint32) & np.uint32(row)
        for half in (16, 8, 4, 2, 1):
            common ^= common >> np.uint32(half)
        hadamard = 1 - 2 * (common & np.uint32(1)).astype(np.int16)
        block = slice(begin, begin + size)
        own[block] = np.int16(scale) * hadamard * signs[key, cycle][block]
    return z


def check_whole(count: int, first: int) -> None:
    """Check that a request is for whole orthogonal directions, and not for a part of them.

    Raises:
        ReplayError: if only a part is requested, or the directions are longer than
            `MAX_ORTHOGONAL`.
    """
    if first or not 1 <= count <= MAX_ORTHOGONAL:
        raise ReplayError(
            f"orthogonal directions of {count:,} elements from element {first:,} on: Samara makes "
            f"only whole directions of at most {MAX_ORTHOGONAL:,} elements; set "
            "adapter.distribution to gaussian"
        )


def directions(
    seeds: NDArray[np.uint64], count: int, distribution: Distribution, first: int = 0
) -> NDArray[np.int16]:
    """Return the directions z of n seeds, or a part of their elements.

    Args:
        seeds: uint64 [n].
        count: number of elements, usually d.
        distribution: ``gaussian``, ``rademacher`` or ``orthogonal``.
        first: first element, a multiple of `WHOLE_BLOCKS`; 0 for orthogonal directions.

    Returns:
        int16 [n, count]; multiply by 2⁻¹¹.

    Raises:
        ReplayError: if orthogonal directions are too long, or only a part is requested.
    """
    if distribution == "orthogonal":
        check_whole(count, first)
        return orthogonal(seeds, count)
    if distribution == "gaussian":
        return normals(seeds, count, first=first)
    return rademacher(seeds, count, first)


def _join_words(words: NDArray[np.uint32]) -> NDArray[np.uint64]:
    low, high = words[..., 0].astype(np.uint64), words[..., 1].astype(np.uint64)
    return low | (high << _WORD_BITS)


def query_seeds(
    root: int | NDArray[np.uint64],
    seed_stream: int | NDArray[np.uint32],
    steps: int,
    queries: int,
    first_step: int = 0,
) -> NDArray[np.uint64]:
    """Return the seeds of all queries in a round, for one client or several clients.

    Args:
        root: the round's root seed, or one per client, uint64 [n].
        seed_stream: 0 if the cohort shares its directions, otherwise client index + 1; or one per
            client, uint32 [n].
        steps: local steps K.
        queries: queries per step q.
        first_step: index of the first step.

    Returns:
        uint64 [K, q], or [n, K, q]; a seed depends neither on K nor on q.
    """
    streams = np.asarray(seed_stream, np.uint32)
    counter = np.zeros((*streams.shape, steps, queries, 4), np.uint32)
    counter[..., 0] = np.arange(queries, dtype=np.uint32)
    counter[..., 1] = np.arange(first_step, first_step + steps, dtype=np.uint32)[:, None]
    counter[..., 2] = Domain.QUERY_SEED
    counter[..., 3] = streams[..., None, None]
    keys = _keys(np.asarray(root, np.uint64))
    return _join_words(philox4x32(counter, keys[..., None, None, :]))


def round_root(run_seed: int, round_number: int, track: int) -> int:
    """Derive the root seed of a round from the run's seed, the round's number and the track."""
    counter = np.array([round_number, track, Domain.ROUND_ROOT, 0], np.uint32)
    return int(_join_words(philox4x32(counter, _keys(np.array(run_seed, np.uint64)))))


def consecutive_seeds(root: int, count: int) -> NDArray[np.uint64]:
    """Return the seeds root, root + 1, …, modulo 2⁶⁴, uint64 [count]."""
    seeds: NDArray[np.uint64] = np.uint64(root) + np.arange(count, dtype=np.uint64)
    return seeds


def orthogonal_root(run_seed: int, round_number: int, queries: int, track: int) -> int:
    """Return the seed of a round's first orthogonal direction.

    The round's other directions have the seeds that follow, and the next round continues after
    them. So every d consecutive directions form a complete orthogonal set.

    Args:
        run_seed: the run's seed.
        round_number: the round, counted from 1.
        queries: directions per round.
        track: track of the round.
    """
    key = round_root(run_seed, 0, track) >> INDEX_BITS
    return key << INDEX_BITS | (round_number - 1) * queries % MAX_ORTHOGONAL


def batch_order(root: int, client: int, step: int, examples: int) -> NDArray[np.int64]:
    """Return a random order of a client's examples; a step trains on the first B of them.

    Args:
        root: the round's root seed, which depends on run, round and track.
        client: client index.
        step: local step within the round.
        examples: number of the client's examples.

    Returns:
        int64 [examples], a permutation.
    """
    return _random_order(Domain.BATCH_ORDER, root, step, client, examples)


def _random_order(
    domain: Domain, root: int, word_1: int, word_3: int, count: int
) -> NDArray[np.int64]:
    """Return a random permutation, int64 [count], by sorting random keys, two per counter."""
    counter = _counters(-(-count // 2), domain)
    counter[:, 1] = word_1
    counter[:, 3] = word_3
    words = philox4x32(counter, _keys(np.array(root, np.uint64)))
    sort_keys = _join_words(words.reshape(-1, 2))[:count]
    return np.argsort(sort_keys, kind="stable").astype(np.int64)


def pool_seeds(root: int, indices: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return the seeds at some indices of the pool that serves a whole run.

    Args:
        root: the pool's root seed, `round_root` of round 0.
        indices: indices of the seeds in the pool, uint32 [...].

    Returns:
        uint64 [...]; a seed does not depend on the size of the pool.
    """
    counter = np.zeros((*indices.shape, 4), np.uint32)
    counter[..., 0] = indices
    counter[..., 2] = Domain.POOL_SEED
    return _join_words(philox4x32(counter, _keys(np.array(root, np.uint64))))


def pool_indices(
    root: int, seed_stream: int, steps: int, queries: int, size: int
) -> NDArray[np.uint32]:
    """Return the indices of the pool seeds that a client uses for its queries in a round.

    The indices are a random permutation of the pool, repeated if the round has more queries than
    the pool has seeds. So the numbers of uses of two seeds differ by at most 1.

    Args:
        root: the round's root seed.
        seed_stream: client index + 1.
        steps: local steps K.
        queries: queries per step q.
        size: seeds in the pool.

    Returns:
        uint32 [K, q], each below `size`.
    """
    order = _random_order(Domain.POOL_ORDER, root, 0, seed_stream, size).astype(np.uint32)
    return np.resize(order, (steps, queries))


def prefix_tokens(root: int, count: int, vocabulary: int) -> NDArray[np.int64]:
    """Return random tokens whose keys and values initialize the prefix in prefix tuning.

    Args:
        root: seed.
        count: number of tokens.
        vocabulary: number of tokens to choose from.

    Returns:
        int64 [count], each below `vocabulary`.
    """
    words = philox4x32(_counters(count, Domain.PREFIX_TOKEN), _keys(np.array(root, np.uint64)))
    tokens: NDArray[np.uint64] = _join_words(words) % np.uint64(vocabulary)
    return tokens.astype(np.int64)


def text_tokens(seed: int, texts: int, count: int, vocabulary: int) -> NDArray[np.int64]:
    """Return random texts as token ids.

    Args:
        seed: seed.
        texts: number of texts n.
        count: number of tokens of a text.
        vocabulary: number of tokens to choose from.

    Returns:
        int64 [n, count], each below `vocabulary`; a text does not depend on the number of texts.
    """
    counter = np.zeros((texts, count, 4), np.uint32)
    counter[..., 0] = np.arange(count, dtype=np.uint32)
    counter[..., 1] = np.arange(texts, dtype=np.uint32)[:, None]
    counter[..., 2] = Domain.TEXT_TOKEN
    words = philox4x32(counter, _keys(np.array(seed, np.uint64)))
    tokens: NDArray[np.uint64] = _join_words(words) % np.uint64(vocabulary)
    return tokens.astype(np.int64)


def cohort_keys(
    run_seed: int, round_number: int, clients: NDArray[np.uint32]
) -> NDArray[np.uint64]:
    """Return one random number per client for a round; the smallest numbers form the cohort.

    Args:
        run_seed: the run's seed.
        round_number: the round.
        clients: uint32 [n], client indices.

    Returns:
        uint64 [n]; a client's number does not depend on the other clients.
    """
    counter = np.zeros((len(clients), 4), np.uint32)
    counter[:, 0] = round_number
    counter[:, 2] = Domain.COHORT
    counter[:, 3] = clients
    return _join_words(philox4x32(counter, _keys(np.array(run_seed, np.uint64))))
