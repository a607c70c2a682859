"""Rate limits per party, in bounded memory that strangers cannot fill."""

import ipaddress
import time
from collections import Counter
from collections.abc import Callable

WINDOW_SECONDS = 60.0
MAX_PARTIES = 10_000
"""Largest number of parties counted in a window. Further parties wait for the next window."""


class RateLimit:
    """A limit on each party's actions within windows of `WINDOW_SECONDS`.

    Args:
        most: largest number of a party's actions in a window.
        clock: function that returns monotonic seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._counts, self._window_end = Counter[str](), 0.0

    def admits(self, party: str) -> bool:
        """Count an action of a party and return True, or return False at the limit."""
        if (now := self._clock()) >= self._window_end:
            self._counts.clear()
            self._window_end = now + WINDOW_SECONDS
        is_new = party not in self._counts
        if self._counts[party] >= self._most or (is_new and len(self._counts) >= MAX_PARTIES):
            return False
        self._counts[party] += 1
        return True


class Pace:
    """A pace at which each party gets turns. A party saves unused turns up to a limit.

    Args:
        per_second: number of turns that a party gets per second.
        saved: largest number of turns that a party can take at once.
        clock: function that returns monotonic seconds.
    """

    def __init__(
        self, per_second: float, saved: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._between, self._clock = 1 / per_second, clock
        self._ahead = saved * self._between
        self._next: dict[str, float] = {}  # each party's next free turn, monotonic seconds

    def take(self, party: str) -> float:
        """Take a party's next turn, and return the seconds until the turn is due."""
        now = self._clock()
        if party not in self._next and len(self._next) >= MAX_PARTIES:
            begun = now - self._ahead
            self._next = {name: due for name, due in self._next.items() if due > begun}
            if len(self._next) >= MAX_PARTIES:
                self._next.clear()
        due = max(self._next.get(party, 0.0), now - self._ahead)
        self._next[party] = due + self._between
        return max(0.0, due - now)


def network_of(host: str, bits_of_ipv4: int = 32, bits_of_ipv6: int = 64) -> str:
    """Return the network part of an address; the sender cannot freely change this part.

    Args:
        host: address; any other text is returned unchanged.
        bits_of_ipv4: network bits of an IPv4 address.
        bits_of_ipv6: network bits of an IPv6 address.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if not address.ipv4_mapped:
            return str(ipaddress.ip_network((address, bits_of_ipv6), strict=False))
        address = address.ipv4_mapped
    if bits_of_ipv4 == address.max_prefixlen:
        return str(address)
    return str(ipaddress.ip_network((address, bits_of_ipv4), strict=False))
