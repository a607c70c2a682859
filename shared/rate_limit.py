"""A limit of what each party does within a minute, in a memory that strangers cannot fill."""

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


def network_of(host: str) -> str:
    """Return what the sender at an address cannot change at will: of IPv6 the first 64 bits.

    Args:
        host: address; anything else is returned as it is.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
