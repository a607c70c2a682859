import hashlib
from collections.abc import Callable
from functools import cache
from itertools import combinations
from math import gcd, sqrt

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import kstest

import samara.shared.protocol.directions as directions_module
from samara.shared.protocol.directions import (
    MAX_ORTHOGONAL,
    Distribution,
    Domain,
    batch_order,
    cohort_keys,
    consecutive_seeds,
    directions,
    normals,
    orthogonal,
    orthogonal_root,
    philox4x32,
    pool_indices,
    pool_seeds,
    prefix_tokens,
    query_seeds,
    rademacher,
    round_root,
)
from samara.shared.protocol.normal_table import NORMAL_TABLE, TABLE_SHA256
from samara.shared.protocol.replay_numba import NumbaBackend

SEEDS = [0, 1, 2**32, 2**64 - 1, 0x243F6A8885A308D3]


@cache
def plain_philox(counter: tuple[int, int, int, int], seed: int) -> tuple[int, int, int, int]:
    """Philox4x32-10 as defined in the paper, in Python's integers."""
    (c0, c1, c2, c3), k0, k1 = counter, seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 2**32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


def plain_normal(seed: int, element: int) -> int:
    block, rest = divmod(element, 2048)
    word, rest = divmod(rest, 512)
    half, j = divmod(rest, 256)
    words = plain_philox((256 * block + j, 0, 1, 0), seed)
    return round(2048 * ndtri(((words[word] >> 16 * half & 0xFFFF) + 0.5) / 65536))


def plain_sign(seed: int, element: int) -> int:
    block, rest = divmod(element, 8192)
    bit, rest = divmod(rest, 256)
    word, j = divmod(rest, 64)
    words = plain_philox((64 * block + j, 0, 1, 0), seed)
    return 2048 if words[word] >> bit & 1 else -2048


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("00000000 " * 4, "00000000 " * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff " * 4, "ffffffff " * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_known_answers_of_random123(counter: str, key: str, words: str) -> None:
    def read(text: str) -> NDArray[np.uint32]:
        return np.array([int(word, 16) for word in text.split()], np.uint32)

    np.testing.assert_array_equal(philox4x32(read(counter), read(key)), read(words))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("distribution", "plain", "count"),
    [("gaussian", plain_normal, 2048 + 1234), ("rademacher", plain_sign, 8192 + 567)],
)
def test_directions_agree_with_the_written_rule(
    distribution: Distribution, plain: Callable[[int, int], int], count: int, seed: int
) -> None:
    z = directions(np.array([5, seed], np.uint64), count, distribution)
    assert z.shape == (2, count)
    assert z.dtype == np.int16
    np.testing.assert_array_equal(z[1], [plain(seed, element) for element in range(count)])


@pytest.mark.parametrize("distribution", ["gaussian", "rademacher"])
def test_a_shorter_direction_begins_a_longer_one(distribution: Distribution) -> None:
    seeds = np.array(SEEDS, np.uint64)
    longest = directions(seeds, 17_000, distribution)
    for count in (0, 1, 2047, 2048, 2049, 8191, 8192, 8193):
        np.testing.assert_array_equal(directions(seeds, count, distribution), longest[:, :count])
    assert directions(seeds[:0], 100, distribution).shape == (0, 100)


def test_table_is_the_normal_quantiles() -> None:
    assert NORMAL_TABLE.shape == (65_536,)
    assert hashlib.sha256(NORMAL_TABLE.astype("<i2").tobytes()).hexdigest() == TABLE_SHA256
    np.testing.assert_array_equal(NORMAL_TABLE, -NORMAL_TABLE[::-1])
    quantiles = ndtri((np.arange(65_536) + 0.5) / 65_536)
    np.testing.assert_array_equal(NORMAL_TABLE, np.rint(2048 * quantiles))
    assert not NORMAL_TABLE.flags.writeable


@pytest.fixture(scope="module")
def sample() -> NDArray[np.float64]:
    """Directions of 64 neighbouring seeds, half of which differ only in the high word."""
    seeds = np.arange(32, dtype=np.uint64)
    return normals(np.concatenate([seeds, seeds << np.uint64(32) | np.uint64(7)]), 2**15) / 2048


# The seeds are fixed, so nothing below is left to chance; the bounds are five standard errors,
# which a sound generator misses less than once in a million choices of seeds.


def test_moments_are_those_of_the_normal_distribution(sample: NDArray[np.float64]) -> None:
    error = 1 / np.sqrt(sample.size)
    assert abs(sample.mean()) < 5 * error
    assert abs((sample**2).mean() - 1) < 5 * np.sqrt(2) * error
    assert abs((sample**3).mean()) < 5 * np.sqrt(15) * error
    assert abs((sample**4).mean() - 3) < 5 * np.sqrt(96) * error


def test_distribution_function_is_the_normal_one(sample: NDArray[np.float64]) -> None:
    edges = np.arange(-4 * 2048, 4 * 2048) / 2048
    share = np.searchsorted(np.sort(sample, axis=None), edges, side="right") / sample.size
    assert np.abs(share - ndtr(edges + 0.5 / 2048)).max() < 2 / np.sqrt(sample.size) + 2**-16


def test_every_seed_passes_kolmogorov_and_smirnov() -> None:
    """The 64 p-values are uniform, and none is extremely small."""
    z = NumbaBackend().directions(np.arange(64, dtype=np.uint64), 2**14, "gaussian")
    p_values = [kstest(row / 2048, "norm").pvalue for row in z]
    assert min(p_values) > 1e-6
    assert kstest(p_values, "uniform").pvalue > 1e-6


@pytest.mark.parametrize("distribution", ["gaussian", "rademacher"])
def test_tensors_of_an_adapter_are_perturbed_independently(distribution: Distribution) -> None:
    """The correlation of each pair of 12 consecutive tensors of 16 × 64, under 32 seeds."""
    seeds = query_seeds(2, 1, 8, 4).ravel()
    z = NumbaBackend().directions(seeds, 12 * 1024, distribution) / 2048
    tensors = z.reshape(32, 12, 1024)
    correlation = np.triu(tensors @ tensors.transpose(0, 2, 1), k=1) / 32
    assert np.abs(correlation).max() < 5
    assert abs(correlation.sum()) < 5 * np.sqrt(32 * 12 * 11 / 2)


@pytest.mark.parametrize("distribution", ["gaussian", "rademacher"])
def test_directions_of_different_seeds_are_uncorrelated(distribution: Distribution) -> None:
    seeds = np.array([*range(32), *(seed << 32 for seed in range(1, 32))], np.uint64)
    z = directions(seeds, 2**14, distribution) / 2048
    correlation = np.triu(z @ z.T, k=1) / np.sqrt(z.shape[1])
    assert np.abs(correlation).max() < 5


@pytest.mark.parametrize("distance", [1, 2, 64, 256, 512, 1024, 2048, 8192])
@pytest.mark.parametrize("distribution", ["gaussian", "rademacher"])
def test_elements_of_a_direction_are_uncorrelated(
    distribution: Distribution, distance: int
) -> None:
    z = directions(np.arange(32, dtype=np.uint64), 2**14, distribution) / 2048
    products = z[:, :-distance] * z[:, distance:]
    assert abs(products.sum()) < 5 * np.sqrt(products.size)


def test_signs_are_even() -> None:
    signs = rademacher(np.arange(64, dtype=np.uint64), 2**14)
    assert set(np.unique(signs)) == {-2048, 2048}
    assert abs((signs / 2048).sum()) < 5 * np.sqrt(signs.size)


def test_no_two_uses_of_a_seed_share_a_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    used: dict[str, set[tuple[int, ...]]] = {}

    def recording(counter: NDArray[np.uint32], key: NDArray[np.uint32]) -> NDArray[np.uint32]:
        used[use] = {tuple(words) for words in counter.reshape(-1, 4).tolist()}
        return philox4x32(counter, key)

    monkeypatch.setattr(directions_module, "philox4x32", recording)
    seeds = np.array([3], np.uint64)
    uses: dict[str, Callable[[], object]] = {
        "direction": lambda: normals(seeds, 5000),
        "frozen A": lambda: normals(seeds, 5000, Domain.LORA_A),
        "batches, device 0": lambda: batch_order(3, 0, 0, 300),
        "batches, device 1": lambda: batch_order(3, 1, 0, 300),
        "batches, next step": lambda: batch_order(3, 0, 1, 300),
        "shared queries": lambda: query_seeds(3, 0, 5, 7),
        "queries of a client": lambda: query_seeds(3, 1, 5, 7),
        "queries of another": lambda: query_seeds(3, 2, 5, 7),
        "tokens of a prefix": lambda: prefix_tokens(3, 9, 50),
        "root": lambda: round_root(3, 1, 0),
        "root of the next round": lambda: round_root(3, 2, 0),
        "root of another track": lambda: round_root(3, 1, 1),
        "seeds of the pool": lambda: pool_seeds(3, np.arange(9, dtype=np.uint32)),
        "pool, client 1": lambda: pool_indices(3, 1, 5, 7, 20),
        "pool, client 2": lambda: pool_indices(3, 2, 5, 7, 20),
        "cohort": lambda: cohort_keys(3, 1, np.arange(9, dtype=np.uint32)),
        "cohort of the next round": lambda: cohort_keys(3, 2, np.arange(9, dtype=np.uint32)),
    }
    for use, call in uses.items():  # noqa: B007  (read by `recording`)
        call()
    assert set(used) == set(uses)
    for one, other in combinations(uses, 2):
        assert not used[one] & used[other], f"{one} and {other}"


def test_query_seeds_differ_and_depend_on_their_place_alone() -> None:
    seeds = np.concatenate([query_seeds(9, client, 6, 5).ravel() for client in range(4)])
    assert len(set(seeds.tolist())) == 4 * 6 * 5
    np.testing.assert_array_equal(query_seeds(9, 2, 6, 5)[:3, :2], query_seeds(9, 2, 3, 2))


@pytest.mark.slow
def test_ten_million_derived_seeds_do_not_collide() -> None:
    """Twenty rounds of five clients in one run, with 100,000 queries each."""
    roots = [round_root(7, number, 0) for number in range(1, 21)]
    parts = [query_seeds(root, client, 50, 2000) for root in roots for client in range(1, 6)]
    seeds = np.concatenate([*(part.ravel() for part in parts), np.array(roots, np.uint64)])
    seeds.sort()
    assert len(seeds) == 10**7 + 20
    assert np.all(seeds[1:] != seeds[:-1])


def test_derived_seeds_are_the_first_two_words_low_word_first() -> None:
    low, high, *_ = plain_philox((4, 2, 4, 11), 2**63 + 5)
    assert int(query_seeds(2**63 + 5, 11, 3, 5)[2, 4]) == low | high << 32
    low, high, *_ = plain_philox((12, 34, 5, 0), 8)
    assert round_root(8, 12, 34) == low | high << 32
    low, high, *_ = plain_philox((12, 0, 6, 34), 8)
    assert int(cohort_keys(8, 12, np.array([34], np.uint32))[0]) == low | high << 32


def test_seeds_of_a_pool_are_the_first_two_words_of_their_index() -> None:
    low, high, *_ = plain_philox((2**32 - 1, 0, 7, 0), 2**63 + 5)
    assert int(pool_seeds(2**63 + 5, np.array([3, 2**32 - 1], np.uint32))[1]) == low | high << 32


def test_queries_read_the_pool_in_an_order_of_the_client_over_and_over() -> None:
    keys = []
    for pair in range(4):
        a, b, c, d = plain_philox((pair, 0, 8, 3), 5)
        keys += [a | b << 32, c | d << 32]
    order = sorted(range(7), key=keys.__getitem__)
    expected = (3 * order)[: 4 * 5]
    assert pool_indices(5, 3, 4, 5, 7).ravel().tolist() == expected
    np.testing.assert_array_equal(pool_indices(5, 3, 4, 5, 7)[:2], pool_indices(5, 3, 2, 5, 7))


@pytest.mark.parametrize("examples", [0, 1, 2, 17, 300])
def test_batch_order_is_a_pure_permutation(examples: int) -> None:
    order = batch_order(5, 2, 3, examples)
    assert order.tolist() == batch_order(5, 2, 3, examples).tolist()
    assert sorted(order.tolist()) == list(range(examples))


def test_batch_order_sorts_the_written_keys() -> None:
    keys = []
    for pair in range(9):
        a, b, c, d = plain_philox((pair, 3, 3, 2), 5)
        keys += [a | b << 32, c | d << 32]
    assert batch_order(5, 2, 3, 17).tolist() == sorted(range(17), key=keys.__getitem__)


def test_batch_order_differs_between_roots_devices_and_steps() -> None:
    orders = {
        tuple(batch_order(*place, 50)) for place in ((5, 2, 3), (6, 2, 3), (5, 1, 3), (5, 2, 4))
    }
    assert len(orders) == 4


def test_seeds_of_a_step_depend_neither_on_how_many_there_are_nor_on_other_steps() -> None:
    whole = query_seeds(3, 0, 9, 5)
    np.testing.assert_array_equal(query_seeds(3, 0, 2, 3, first_step=6), whole[6:8, :3])


def test_seeds_of_several_clients_are_those_of_each() -> None:
    roots, streams = np.array([3, 2**63 + 5], np.uint64), np.array([0, 7], np.uint32)
    together = query_seeds(roots, streams, 4, 3, first_step=2)
    for seeds, root, stream in zip(together, roots.tolist(), streams.tolist(), strict=True):
        np.testing.assert_array_equal(seeds, query_seeds(root, stream, 4, 3, first_step=2))


def test_tokens_of_a_prefix_are_below_the_vocabulary() -> None:
    tokens = prefix_tokens(2**63, 4000, 50)
    assert set(tokens.tolist()) == set(range(50))
    for place, token in enumerate(tokens[:10].tolist()):
        low, high, _, _ = plain_philox((place, 0, 9, 0), 2**63)
        assert token == (low | high << 32) % 50


def plain_orthogonal(seed: int, count: int) -> list[int]:
    """A row of an orthogonal set as defined in the docstrings, in Python's integers."""
    key, index = divmod(seed, 2**24)
    cycle, place = divmod(index, count)
    stride = next(s for s in range((count * 40503 >> 16) or 1, 2 * count + 2) if gcd(s, count) == 1)
    row, begin, z = place * stride % count, 0, [0] * count
    for bit in reversed(range(count.bit_length())):
        size = 2**bit
        if not count & size:
            continue
        if begin <= row < begin + size:
            scale = min(round(2048 * sqrt(count / size)), 32767)
            for j in range(size):
                counter, rest = divmod(begin + j, 128)
                words = plain_philox((counter, cycle, Domain.ORTHOGONAL_SIGN, 0), key)
                sign = 1 if words[rest // 32] >> rest % 32 & 1 else -1
                z[begin + j] = scale * sign * (-1) ** (row - begin & j).bit_count()
        begin += size
    return z


@pytest.mark.parametrize("count", [1, 3, 128, 300, 1541])
def test_orthogonal_directions_are_the_written_rows(count: int) -> None:
    for seed in (0, 2**24 - 1, 2**64 - 1, 0x243F6A8885A308D3):
        expected = plain_orthogonal(seed, count)
        assert orthogonal(np.array([seed], np.uint64), count)[0].tolist() == expected


@pytest.mark.parametrize("count", [1, 2, 3, 128, 384, 1541])
@pytest.mark.parametrize("first", [0, 5])
def test_rows_of_one_set_are_exactly_orthogonal_and_about_as_long(count: int, first: int) -> None:
    key, begin = 7 << 24, first * count
    z = orthogonal(np.arange(key + begin, key + begin + count, dtype=np.uint64), count)
    numbers = z.astype(np.float64)
    products = numbers @ numbers.T  # exact: the sums of sizes are below 2^53
    assert not np.any(products - np.diag(np.diag(products)))
    lengths = np.diag(products) / (count * 2048**2)
    assert np.all(lengths <= 1.001)
    assert np.sum(lengths < 0.999) <= (5 if count == 1541 else 0)  # its blocks of 4 and 1


def test_sets_of_one_key_and_of_others_differ() -> None:
    seeds = np.array([0, 128, 1 << 24], np.uint64)
    z = orthogonal(seeds, 128).astype(np.int64)
    for one, other in combinations(z, 2):
        assert abs(int(one @ other)) < 0.6 * 128 * 2048**2


def test_the_directions_of_rounds_follow_one_another() -> None:
    roots = [orthogonal_root(3, number, 48, 0) for number in (1, 2, 3)]
    seeds = np.concatenate([consecutive_seeds(root, 48) for root in roots])
    np.testing.assert_array_equal(seeds, np.arange(roots[0], roots[0] + 144, dtype=np.uint64))
    rows = orthogonal(seeds[:128], 128).astype(np.int64)
    assert np.linalg.matrix_rank(rows) == 128
    assert roots[0] % MAX_ORTHOGONAL == 0
    assert orthogonal_root(4, 1, 48, 0) != roots[0] != orthogonal_root(3, 1, 48, 1)
