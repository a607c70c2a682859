"""An emulated link between host and accelerator, whose bandwidth determines the time of copies."""

import threading
import time
from typing import Any

import torch
from torch import Tensor

from samara.client.streaming.block_transfer import BlockTransfer


class Clock:
    """The machine's monotonic clock; tests replace it."""

    def now(self) -> float:
        """Return the seconds since a fixed point in time."""
        return time.monotonic()

    def sleep_until(self, moment: float) -> None:
        """Sleep until the clock shows at least this many seconds."""
        while (left := moment - self.now()) > 0:
            time.sleep(left)


class LinkDirection:
    """One direction of a link, which transfers bytes one after another at a fixed rate.

    A new transfer waits for the transfers before it. Time without transfers does not make later
    transfers faster.

    Args:
        rate: bytes/s.
        clock: clock for waiting.
    """

    def __init__(self, rate: float, clock: Clock) -> None:
        self._rate, self._clock = rate, clock
        self._free_at = clock.now()
        self._lock = threading.Lock()

    def carry(self, size: int) -> None:
        """Wait until a number of bytes is transferred, after the bytes of earlier calls."""
        with self._lock:
            begin = max(self._clock.now(), self._free_at)
            self._free_at = end = begin + size / self._rate
        self._clock.sleep_until(end)


class EmulatedTransfer(BlockTransfer):
    """A transfer between two parts of CPU memory over an emulated duplex link.

    Args:
        to_device: bytes/s from the host to the accelerator.
        to_host: bytes/s from the accelerator to the host. The two directions are independent.
        clock: clock for waiting.
    """

    device, pinned = torch.device("cpu"), False

    def __init__(self, to_device: float, to_host: float, clock: Clock | None = None) -> None:
        clock = clock or Clock()
        self._to_device = LinkDirection(to_device, clock)
        self._to_host = LinkDirection(to_host, clock)

    def upload(self, host_buffer: Tensor, device_buffer: Tensor | None, event: Any) -> Tensor:
        """Copy the block to the accelerator's part of memory, and wait for the transfer time."""
        assert device_buffer is not None, "an emulated accelerator computes in its own memory"
        device_bytes = device_buffer[: len(host_buffer)]
        device_bytes.copy_(host_buffer)
        self._to_device.carry(len(host_buffer))
        return device_bytes

    def record_event(self) -> Any:
        """Return None, because the emulated accelerator works synchronously."""
        return None

    def offload(self, device_bytes: Tensor, host_buffer: Tensor, event: Any) -> None:
        """Copy the block to the host's part of memory, and wait for the transfer time."""
        host_buffer.copy_(device_bytes)
        self._to_host.carry(len(host_buffer))
