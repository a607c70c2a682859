"""Laws of secret sharing and masks, for any secrets, clients and departures."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samara.shared.errors import MaskingError
from samara.shared.protocol.secure_aggregation import graph
from samara.shared.protocol.secure_aggregation.graph import (
    DEGREE,
    least_number,
    neighbourhood_of,
    neighbourhoods,
)
from samara.shared.protocol.secure_aggregation.keys import (
    MASKING,
    SEALING,
    RoundKey,
    digest_of_clients,
    pair_of,
    seal,
    unseal,
)
from samara.shared.protocol.secure_aggregation.masks import mask_vector, unmask_sum
from samara.shared.protocol.secure_aggregation.shamir import PRIME, combine_shares, split_secret

SECRETS = st.integers(0, 2**256 - 1)
CLIENTS = st.lists(st.integers(0, 2**32 - 2), min_size=3, max_size=9, unique=True)
KEYS = st.binary(min_size=32, max_size=32)


@given(SECRETS, st.lists(st.integers(1, 2**32), min_size=1, max_size=8, unique=True), st.data())
def test_any_t_shares_give_the_secret(secret: int, points: list[int], data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, len(points)))
    shares = dict(zip(points, split_secret(secret, points, threshold), strict=True))
    chosen = data.draw(st.permutations(points))[:threshold]
    assert combine_shares({point: shares[point] for point in chosen}) == secret
    assert combine_shares(shares) == secret


@given(SECRETS, SECRETS, st.integers(2, 6))
def test_fewer_shares_fit_any_secret(secret: int, other: int, threshold: int) -> None:
    """For any secret, some polynomial goes through the same t − 1 shares."""
    points = range(1, threshold)
    shares = split_secret(secret, range(1, threshold + 1), threshold)
    held = dict(zip(points, shares, strict=False))
    # the one missing share with which the others give the other secret, by Lagrange's basis
    with_zero, with_one = (combine_shares(held | {threshold: last}) for last in (0, 1))
    last = (other - with_zero) * pow(with_one - with_zero, -1, PRIME) % PRIME
    assert combine_shares(held | {threshold: last}) == other


@pytest.mark.parametrize(
    ("points", "threshold"), [([1, 1], 1), ([0, 1], 1), ([PRIME], 1), ([1, 2], 3), ([], 0)]
)
def test_shares_need_different_points(points: list[int], threshold: int) -> None:
    with pytest.raises(ValueError, match=r"points must be|out of range"):
        split_secret(5, points, threshold)


def test_the_field_is_prime_and_no_smaller_one_would_do() -> None:
    assert pow(2, PRIME - 1, PRIME) == 1
    assert all(pow(3, n - 1, n) != 1 for n in range(2**256 + 1, PRIME, 2))


@given(CLIENTS, st.integers(1, 5), st.data())
def test_masks_cancel_over_any_survivors(
    clients: list[int], numbers: int, data: st.DataObject
) -> None:
    pairs = {pair: data.draw(KEYS) for pair in combinations(sorted(clients), 2)}
    seeds = {client: data.draw(KEYS) for client in clients}
    whole = st.integers(-(2**42), 2**42)
    vectors = {
        client: np.array(data.draw(st.lists(whole, min_size=numbers, max_size=numbers)))
        for client in clients
    }

    def pair_keys(client: int, others: list[int]) -> dict[int, bytes]:
        return {o: pairs[min(o, client), max(o, client)] for o in others if o != client}

    masked = {
        client: mask_vector(vectors[client], client, seeds[client], pair_keys(client, clients))
        for client in clients
    }
    stay = data.draw(st.lists(st.sampled_from(clients), min_size=1, unique=True))
    missing = {c: pair_keys(c, stay) for c in clients if c not in stay}
    total = unmask_sum((masked[c] for c in stay), (seeds[c] for c in stay), missing)
    assert total.tolist() == np.sum([vectors[client] for client in stay], axis=0).tolist()


@given(CLIENTS)
def test_few_clients_are_all_neighbours(clients: list[int]) -> None:
    around = neighbourhoods(bytes(8), clients)
    assert all(around[client] == sorted(clients) for client in clients)


def test_many_clients_have_a_fixed_number_of_mutual_neighbours() -> None:
    clients = list(range(0, 3000, 7))
    around = neighbourhoods(b"12345678", clients)
    for client, neighbours in around.items():
        assert len(neighbours) == len(set(neighbours)) == DEGREE + 1
        assert client in neighbours
        assert neighbours == sorted(neighbours)
        assert all(client in around[neighbour] for neighbour in neighbours)
    assert neighbourhood_of(700, b"12345678", clients) == around[700]
    assert neighbourhoods(b"87654321", clients) != around
    assert around[0] == neighbourhoods(b"12345678", clients[::-1])[0]


@given(st.integers(1, 10**6))
def test_the_threshold_is_above_two_thirds(count: int) -> None:
    assert 3 * least_number(count) > 2 * count >= 3 * (least_number(count) - 1)
    assert graph.LEAST_CLIENTS == 3


def test_what_is_sealed_is_read_by_its_receiver_in_its_round_alone() -> None:
    one, other = RoundKey.generate(), RoundKey.generate()
    pair = pair_of(digest_of_clients(b"12345678", (1, 2, 3)), 1, 2)
    key = one.agree(other.public, SEALING, pair)
    assert other.agree(one.public, SEALING, pair) == key
    assert key != one.agree(other.public, MASKING, pair)
    sealed = seal(key, b"content", 1, 2, b"12345678")
    assert unseal(key, sealed, 1, 2, b"12345678") == b"content"
    for changed in (
        (key, sealed, 2, 1, b"12345678"),
        (key, sealed, 1, 3, b"12345678"),
        (key, sealed, 1, 2, b"12345679"),
        (bytes(32), sealed, 1, 2, b"12345678"),
        (key, sealed[:-1] + bytes([sealed[-1] ^ 1]), 1, 2, b"12345678"),
        (key, b"", 1, 2, b"12345678"),
    ):
        with pytest.raises(MaskingError, match="cannot be read"):
            unseal(*changed)
    for point in (b"", b"\4" + bytes(64), one.public[:-1]):
        with pytest.raises(MaskingError, match="not a point on P-256"):
            one.agree(point, MASKING, pair)
    with pytest.raises(MaskingError, match="not a private key"):
        assert RoundKey(bytes(32)).public
