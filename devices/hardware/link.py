"""Transfers over a link on a virtual clock: pure, so that a seed decides everything."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil, floor

import numpy as np

from devices.hardware.profile import LinkProfile
from shared.fleet_settings import Hours

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

    start: float
    waiting_seconds: float
    seconds: float
    bytes: int

    @property
    def end(self) -> float:
        """Virtual seconds when the last byte is there."""
        return self.start + self.waiting_seconds + self.seconds


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
    return _simulate_transfer(link, link.up, size, at, seed)


def download(link: LinkProfile, size: int, at: float, seed: int) -> Transfer | None:
    """Send bytes to a device; as `upload`."""
    return _simulate_transfer(link, link.down, size, at, seed)


def is_available(link: LinkProfile, at: float) -> bool:
    """Whether the link is there at a virtual second."""
    return next_available_time(link, at) == at


def next_available_time(link: LinkProfile, at: float) -> float | None:
    """The first virtual second from `at` on when the link is there; None if it never is."""
    return next_time_within(link.available, at)


def next_time_within(hours: Sequence[Hours], at: float) -> float | None:
    """The first virtual second from `at` on inside some hours of the day; None without any."""
    first = next(time_windows(hours, at), None)
    return None if first is None else max(at, first[0])


def time_windows(hours: Sequence[Hours], at: float) -> Iterator[tuple[float, float]]:
    """Some hours of every day in virtual seconds, endlessly, from those that end after `at` on."""
    if not hours:
        return
    for day in count(floor(at / _DAY) - 1):
        for begin, end in sorted(hours):
            interval = day * _DAY + begin * 3600, day * _DAY + end * 3600
            if interval[1] > at:
                yield interval


def _simulate_transfer(
    link: LinkProfile, rate: float, size: int, at: float, seed: int
) -> Transfer | None:
    """Latency, then packets at the link's rate, with repetitions; outages interrupt it."""
    if size < 0:
        raise ValueError(f"a transfer of {size} bytes")
    random = np.random.default_rng(seed)
    packets = ceil(size / PACKET_BYTES)
    lost = int(random.negative_binomial(packets, 1 - link.loss)) if packets and link.loss else 0
    sent = packets + lost
    total = round(sent * size / max(packets, 1)) + sent * HEADER_BYTES
    # Losses that fall into one flight are repeated together, so waiting grows with their number
    # only until every round trip has one.
    flights = max(1, ceil(total / max(rate * 2 * link.latency, PACKET_BYTES)))
    waiting = min(lost, flights) * _WAIT_FOR_LOST * link.latency
    seconds = link.latency + random.uniform(0, 1) * link.jitter + total / rate + waiting
    clock, left = at, seconds
    for begin, end in time_windows(link.available, at):
        clock = max(clock, begin)
        if left <= end - clock:
            return Transfer(at, max(0.0, clock + left - at - seconds), seconds, total)
        left -= max(0.0, end - clock)
        clock = max(clock, end)
    return None
