"""Transfers over a link on a virtual clock: pure, so that a seed decides everything."""

from dataclasses import dataclass
from math import ceil

import numpy as np

from devices.profile import LinkProfile

PACKET_BYTES = 1_460
"""Payload of a TCP segment on an Ethernet of 1,500 bytes."""
HEADER_BYTES = 40
"""Of IP and TCP, for each packet."""
_DAY = 24 * 3600.0
_WAIT_FOR_LOST = 2
"""A lost packet is missed and asked for again: so many latencies."""


@dataclass(frozen=True)
class Transfer:
    """A transfer on the virtual clock.

    Attributes:
        begun: virtual seconds when it was wanted.
        waited: seconds until the link was there, outages on the way included.
        seconds: on the link.
        bytes: that crossed the link, headers and repeated packets included.
    """

    begun: float
    waited: float
    seconds: float
    bytes: int

    @property
    def ended(self) -> float:
        """Virtual seconds when the last byte is there."""
        return self.begun + self.waited + self.seconds


def upload(link: LinkProfile, size: int, at: float, seed: int) -> Transfer | None:
    """Send bytes from a device.

    Args:
        link: that it has.
        size: bytes of payload.
        at: virtual seconds; 0 is a midnight.
        seed: of jitter and loss; the same seed is the same transfer.

    Returns:
        None if the link is never there.
    """
    return _transfer(link, link.up, size, at, seed)


def download(link: LinkProfile, size: int, at: float, seed: int) -> Transfer | None:
    """Send bytes to a device; as `upload`."""
    return _transfer(link, link.down, size, at, seed)


def available_at(link: LinkProfile, at: float) -> bool:
    """Whether the link is there at a virtual second."""
    return next_available(link, at) == at


def next_available(link: LinkProfile, at: float) -> float | None:
    """The first virtual second from `at` on when the link is there; None if it never is."""
    day, second = divmod(at, _DAY)
    waits = []
    for begin, end in ((first * 3600, last * 3600) for first, last in link.available):
        inside = begin <= second < end or begin <= second + _DAY < end
        if inside:
            return at
        waits.append(day * _DAY + begin + (_DAY if begin <= second else 0))
    return min(waits, default=None)


def _transfer(link: LinkProfile, rate: float, size: int, at: float, seed: int) -> Transfer | None:
    """Latency, then packets at the link's rate, with repetitions; outages interrupt it."""
    if size < 0:
        raise ValueError(f"a transfer of {size} bytes")
    start = next_available(link, at)
    if start is None:
        return None
    random = np.random.default_rng(seed)
    packets = ceil(size / PACKET_BYTES)
    lost = int(random.negative_binomial(packets, 1 - link.loss)) if packets and link.loss else 0
    repeated = min(lost, lost * size / max(packets, 1) / PACKET_BYTES)
    total = size + round(repeated * PACKET_BYTES) + (packets + lost) * HEADER_BYTES
    # Losses that fall into one flight are repeated together, so waiting grows with their number
    # only until every round trip has one.
    flights = max(1, ceil(total / max(rate * 2 * link.latency, PACKET_BYTES)))
    waiting = min(lost, flights) * _WAIT_FOR_LOST * link.latency
    seconds = link.latency + random.uniform(0, 1) * link.jitter + total / rate + waiting
    return Transfer(at, start - at + _outages(link, start, seconds), seconds, total)


def _outages(link: LinkProfile, start: float, seconds: float) -> float:
    """Seconds that the link is away before so many seconds on it have passed."""
    if link.hours >= 24:
        return 0.0
    clock, left, away = start, seconds, 0.0
    while True:
        closes = _closes(link, clock)
        if clock + left <= closes:
            return away
        left -= closes - clock
        opens = next_available(link, closes)
        assert opens is not None
        away += opens - closes
        clock = opens


def _closes(link: LinkProfile, at: float) -> float:
    """When the interval that a virtual second lies in ends."""
    day, second = divmod(at, _DAY)
    ends = [
        day * _DAY + end * 3600 - (_DAY if second + _DAY < end * 3600 else 0)
        for begin, end in link.available
        if begin * 3600 <= second < end * 3600 or begin * 3600 <= second + _DAY < end * 3600
    ]
    return max(ends)
