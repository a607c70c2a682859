"""Directions, seeds and batches as pure functions of 64-bit seeds, by Philox4x32-10.

Philox is the counter-based generator of Salmon et al., "Parallel random numbers: as easy as
1, 2, 3" (SC 2011). Its key is a 64-bit seed (low word first). Word 2 of the counter is a domain
tag, so no two uses of one seed ever share a counter. This module is the readable specification:
every other backend must agree with it bit for bit.
"""

from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from samara.shared.normal_table import NORMAL_TABLE

Distribution = Literal["gaussian", "rademacher"]
Differences = Literal["central", "forward"]
"""The losses that projected gradients are made of: L₊ and L₋, or L₊ and one L₀ for all."""
Gradients = Literal["differences", "exact"]
"""The source of projected gradients: differences of losses, or a backward pass."""

BOTH_SIDES = (1, -1)
"""The signs of the perturbations along a direction with central differences."""

DIRECTION_BITS = 11
"""A direction's integers are multiples of 2⁻¹¹."""

WHOLE_BLOCKS = 8192
"""A part of a direction begins at a multiple of this, where both distributions begin a block."""
MAX_DIRECTION = 2**35
"""The most elements of a direction that the counter can number."""

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_LOW_WORD = np.uint64(0xFFFFFFFF)
_WORD_BITS = np.uint64(32)


class Domain(IntEnum):
    """The use of a counter, which is its word 2."""

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


def philox4x32(counter: NDArray[np.uint32], key: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Ten rounds of Philox4x32.

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
    """Return standard normal numbers with scale 2⁻¹¹, in the element order of the format.

    Counters go in blocks of 256; block b covers elements 2048·b onward. The low (h = 0) or high
    (h = 1) half of word w of counter 256·b + j is element 2048·b + 512·w + 256·h + j.

    Args:
        seeds: uint64 [n].
        count: numbers per seed.
        domain: use of the numbers.
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
    """Return random signs ±1 with scale 2⁻¹¹, that is ±2048; a set bit is +1.

    Counters go in blocks of 64; bit t of word w of counter 64·b + j is element
    8192·b + 256·t + 64·w + j.

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


def directions(
    seeds: NDArray[np.uint64], count: int, distribution: Distribution, first: int = 0
) -> NDArray[np.int16]:
    """Return the directions z of n seeds, or a part of their elements.

    Args:
        seeds: uint64 [n].
        count: number of elements, usually d.
        distribution: ``gaussian`` or ``rademacher``.
        first: first element, a multiple of `WHOLE_BLOCKS`.

    Returns:
        int16 [n, count]; multiply by 2⁻¹¹.
    """
    if distribution == "gaussian":
        return normals(seeds, count, first=first)
    return rademacher(seeds, count, first)


def _join_words(words: NDArray[np.uint32]) -> NDArray[np.uint64]:
    low, high = words[..., 0].astype(np.uint64), words[..., 1].astype(np.uint64)
    return low | (high << _WORD_BITS)


def query_seeds(
    root: int, seed_stream: int, steps: int, queries: int, first_step: int = 0
) -> NDArray[np.uint64]:
    """Return the seeds of all queries of a client in a round.

    Args:
        root: the round's root seed.
        seed_stream: 0 if the cohort shares its directions, otherwise client index + 1.
        steps: local steps K.
        queries: queries per step q.
        first_step: first step.

    Returns:
        uint64 [K, q]; a seed depends neither on K nor on q.
    """
    counter = np.zeros((steps, queries, 4), np.uint32)
    counter[..., 0] = np.arange(queries, dtype=np.uint32)
    counter[..., 1] = np.arange(first_step, first_step + steps, dtype=np.uint32)[:, None]
    counter[..., 2] = Domain.QUERY_SEED
    counter[..., 3] = seed_stream
    return _join_words(philox4x32(counter, _keys(np.array(root, np.uint64))))


def round_root(run_seed: int, round_number: int, track: int) -> int:
    """Return the root seed of a round, a function of the run's seed, the round and the track."""
    counter = np.array([round_number, track, Domain.ROUND_ROOT, 0], np.uint32)
    return int(_join_words(philox4x32(counter, _keys(np.array(run_seed, np.uint64)))))


def batch_order(root: int, client: int, step: int, examples: int) -> NDArray[np.int64]:
    """Return a random order of a client's examples; a step trains on the first ones.

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
    """Return the order of random sort keys, two per counter: int64 [count], a permutation."""
    counter = _counters(-(-count // 2), domain)
    counter[:, 1] = word_1
    counter[:, 3] = word_3
    words = philox4x32(counter, _keys(np.array(root, np.uint64)))
    sort_keys = _join_words(words.reshape(-1, 2))[:count]
    return np.argsort(sort_keys, kind="stable").astype(np.int64)


def pool_seeds(root: int, indices: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return seeds of a pool, from which the queries of a whole run are taken.

    Args:
        root: the pool's root seed, `round_root` of round 0.
        indices: indices of the seeds in the pool, uint32 [...].

    Returns:
        uint64 [...]; a seed does not depend on how many the pool has.
    """
    counter = np.zeros((*indices.shape, 4), np.uint32)
    counter[..., 0] = indices
    counter[..., 2] = Domain.POOL_SEED
    return _join_words(philox4x32(counter, _keys(np.array(root, np.uint64))))


def pool_indices(
    root: int, seed_stream: int, steps: int, queries: int, size: int
) -> NDArray[np.uint32]:
    """Return the indices of the pool's seeds that a client's queries try in a round.

    They are a random order of the pool, read over and over if the round has more queries than the
    pool has seeds. So no seed is tried much more often than another, and the queries of one step
    differ as long as the pool lasts.

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
    """Return random tokens whose keys and values a prefix begins with.

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
    """Return random tokens of random texts.

    Args:
        seed: seed.
        texts: number of texts n.
        count: number of tokens of a text.
        vocabulary: number of tokens to choose from.

    Returns:
        int64 [n, count], each below `vocabulary`; a text does not depend on how many there are.
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
    """Return one random number per client for a round; those with the smallest form the cohort.

    Args:
        run_seed: the run's seed.
        round_number: the round.
        clients: uint32 [n], client indices.

    Returns:
        uint64 [n]; a client's number does not depend on which other clients there are.
    """
    counter = np.zeros((len(clients), 4), np.uint32)
    counter[:, 0] = round_number
    counter[:, 2] = Domain.COHORT
    counter[:, 3] = clients
    return _join_words(philox4x32(counter, _keys(np.array(run_seed, np.uint64))))
