"""Rate limits of each party, keyed by the part of an address that its sender cannot change."""

import pytest

from samara.shared.network import rate_limit
from samara.shared.network.rate_limit import WINDOW_SECONDS, Pace, RateLimit, network_of


class Clock:
    """A clock that a test advances."""

    seconds = 5.0

    def __call__(self) -> float:
        return self.seconds


def test_each_party_has_a_count_of_its_own_that_begins_anew_in_the_next_window() -> None:
    clock = Clock()
    limit = RateLimit(2, clock)
    assert [limit.admits("one") for _ in range(4)] == [True, True, False, False]
    assert limit.admits("other")
    clock.seconds += WINDOW_SECONDS - 1
    assert not limit.admits("one")
    clock.seconds += 1
    assert [limit.admits("one") for _ in range(3)] == [True, True, False]


def test_strangers_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "MAX_PARTIES", 3)
    clock = Clock()
    limit = RateLimit(2, clock)
    assert [limit.admits(str(party)) for party in range(5)] == [True, True, True, False, False]
    assert limit.admits("0")
    assert len(limit._counts) == 3
    clock.seconds += WINDOW_SECONDS
    assert limit.admits("4")


def test_turns_are_saved_up_and_then_come_in_a_pace() -> None:
    clock = Clock()
    pace = Pace(2.0, 3, clock)
    assert [pace.take("one") for _ in range(6)] == [0.0, 0.0, 0.0, 0.0, 0.5, 1.0]
    assert pace.take("other") == 0.0
    clock.seconds += 100.0
    assert [pace.take("one") for _ in range(5)] == [0.0, 0.0, 0.0, 0.0, 0.5]


def test_turns_of_strangers_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "MAX_PARTIES", 3)
    clock = Clock()
    pace = Pace(2.0, 3, clock)
    for party in range(100):
        pace.take(str(party))
        assert len(pace._next) <= 3
        clock.seconds += 1.0


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.1", "192.0.2.0/24"),
        ("127.0.1.9", "127.0.1.0/24"),
        ("::ffff:192.0.2.1", "192.0.2.0/24"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1::/48"),
        ("", ""),
    ],
)
def test_addresses_of_one_network_are_one(host: str, network: str) -> None:
    assert network_of(host, 24, 48) == network


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("", ""),
        ("no address", "no address"),
    ],
)
def test_a_sender_of_many_addresses_is_one(host: str, network: str) -> None:
    assert network_of(host) == network
