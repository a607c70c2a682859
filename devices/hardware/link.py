"""Simulated transfers over a link on a virtual clock: pure functions of a seed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil, floor

import numpy as np

from samara.devices.hardware.profile import LinkProfile
from samara.shared.settings.fleet import Hours

PACKET_BYTES = 1_460
"""Payload of a TCP segment in bytes, for an Ethernet MTU of 1,500 bytes."""
HEADER_BYTES = 40
"""Bytes of the IP and TCP headers of a packet."""
_DAY = 24 * 3600.0
_WAIT_FOR_LOST = 2
"""Number of latencies until a lost packet has been requested and sent again."""


@dataclass(frozen=True)
class Transfer:
    """A transfer on the virtual clock.

    Attributes:
        start: virtual time in seconds at which the transfer was requested.
        waiting_seconds: seconds for which the transfer waited for the link to be available.
        seconds: seconds during which the link was in use.
        bytes: bytes that crossed the link, including headers and repeated packets.
    """

    start: float
    waiting_seconds: float
    seconds: float
    bytes: int

    @property
    def end(self) -> float:
        """The virtual time in seconds at which the last byte arrives."""
        return self.start + self.waiting_seconds + self.seconds


def upload(link: LinkProfile, size: int, at: float, seed: int) -> Transfer | None:
    """Simulate sending bytes from a device.

    Args:
        link: link of the device.
        size: size of the payload in bytes.
        at: virtual time of the request in seconds; 0 is midnight.
        seed: seed of jitter and loss; the same seed gives the same transfer.

    Returns:
        The transfer, or None if the link is never available.
    """
    return _simulate_transfer(link, link.up, size, at, seed)


def download(link: LinkProfile, size: int, at: float, seed: int) -> Transfer | None:
    """Simulate sending bytes to a device; see `upload`."""
    return _simulate_transfer(link, link.down, size, at, seed)


def is_available(link: LinkProfile, at: float) -> bool:
    """Return whether the link is available at a virtual time in seconds."""
    return next_available_time(link, at) == at


def next_available_time(link: LinkProfile, at: float) -> float | None:
    """Return the first virtual time, not before `at`, at which the link is available.

    The result is None if the link is never available.
    """
    return next_time_within(link.available, at)


def next_time_within(hours: Sequence[Hours], at: float) -> float | None:
    """Return the first virtual time, not before `at`, within the given daily hours.

    The result is None if there are no hours.
    """
    first = next(time_windows(hours, at), None)
    return None if first is None else max(at, first[0])


def time_windows(hours: Sequence[Hours], at: float) -> Iterator[tuple[float, float]]:
    """Yield daily hours as intervals of virtual seconds, without intervals that end before `at`."""
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
    """Simulate latency, packets at the link's rate, retransmissions, and outages."""
    if size < 0:
        raise ValueError(f"size is {size}; a transfer has at least 0 bytes")
    random = np.random.default_rng(seed)
    packets = ceil(size / PACKET_BYTES)
    lost = int(random.negative_binomial(packets, 1 - link.loss)) if packets and link.loss else 0
    sent = packets + lost
    total = round(sent * size / max(packets, 1)) + sent * HEADER_BYTES
    # Losses within one flight are retransmitted together. The waiting time therefore grows with the
    # number of losses only until every round trip contains a loss.
    flights = max(1, ceil(total / max(rate * 2 * link.latency, PACKET_BYTES)))
    waiting = min(lost, flights) * _WAIT_FOR_LOST * link.latency
    seconds = link.latency + random.uniform(0, 1) * link.jitter + total / rate + waiting
    clock = at
    left = seconds
    for begin, end in time_windows(link.available, at):
        clock = max(clock, begin)
        if left <= end - clock:
            return Transfer(at, max(0.0, clock + left - at - seconds), seconds, total)
        left -= max(0.0, end - clock)
        clock = max(clock, end)
    return None
