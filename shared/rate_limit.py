"""Limits of what each party does in a time, in a memory that strangers cannot fill."""

import ipaddress
import time
from collections import Counter
from collections.abc import Callable

WINDOW_SECONDS = 60.0
MAX_PARTIES = 10_000
"""Most parties that are counted at once; further ones wait for the next window."""


class RateLimit:
    """A limit of what each party does within `WINDOW_SECONDS`, counted in windows of that length.

    Args:
        most: most that one party may do.
        clock: monotonic seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._counts, self._window_end = Counter[str](), 0.0

    def admits(self, party: str) -> bool:
        """Return whether a party may do it once more, and count that if so."""
        if (now := self._clock()) >= self._window_end:
            self._counts.clear()
            self._window_end = now + WINDOW_SECONDS
        is_new = party not in self._counts
        if self._counts[party] >= self._most or (is_new and len(self._counts) >= MAX_PARTIES):
            return False
        self._counts[party] += 1
        return True


class Pace:
    """The pace at which each party gets turns, of which it may save up some.

    Args:
        per_second: turns of a party in a second.
        saved: most turns that a party takes at once.
        clock: monotonic seconds.
    """

    def __init__(
        self, per_second: float, saved: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._between, self._clock = 1 / per_second, clock
        self._ahead = saved * self._between
        self._next: dict[str, float] = {}  # when the turn after the last one is due

    def take(self, party: str) -> float:
        """Take a party's next turn; return the seconds until it is due."""
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
    """Return what the sender at an address cannot change at will: of IPv6 the first 64 bits.

    Args:
        host: address; anything else is returned as it is.
        bits_of_ipv4: bits of an address of IPv4 that name the network.
        bits_of_ipv6: the same of IPv6.
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
