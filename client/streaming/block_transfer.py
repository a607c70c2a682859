"""How a block gets from the host's memory to where it is computed with, and back.

On a CPU it is there already. On CUDA there are three streams (ZO2, section 5.2): one uploads, one
computes, one offloads. A block's upload waits until the buffer's last occupant has been computed
with, its offload until it has been computed with itself; each waits in a thread of its own, so
that nothing waits for more than that.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor


class BlockTransfer(ABC):
    """Moves blocks between a host's memory and a device.

    Attributes:
        device: where blocks are computed with.
        pinned: whether the host's memory should be page-locked.
    """

    device: torch.device
    pinned: bool

    @abstractmethod
    def up(self, room: Tensor, buffer: Tensor | None, after: Any) -> Tensor:
        """A block's bytes on the device, uint8; they have arrived when this returns.

        Args:
            room: uint8, in the host's memory.
            buffer: uint8 on the device, at least as large; None where it is that of the host.
            after: what `mark` gave when the buffer was last computed with, or None.
        """

    @abstractmethod
    def mark(self) -> Any:
        """The moment when the device has done what it was told to until now."""

    @abstractmethod
    def down(self, bytes_there: Tensor, room: Tensor, after: Any) -> None:
        """Bring a block's bytes back; they have arrived when this returns.

        Args:
            bytes_there: as `up` gave them.
            room: uint8, in the host's memory.
            after: what `mark` gave when they were last written.
        """


class CpuTransfer(BlockTransfer):
    """The host's memory is what is computed with."""

    device, pinned = torch.device("cpu"), False

    def up(self, room: Tensor, buffer: Tensor | None, after: Any) -> Tensor:
        """The room itself."""
        return room

    def mark(self) -> Any:
        """Nothing is left to do."""
        return None

    def down(self, bytes_there: Tensor, room: Tensor, after: Any) -> None:
        """They never left."""


class CudaTransfer(BlockTransfer):
    """Page-locked memory, and a stream for either way beside that of the computation.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.pinned = device, True
        self._upload = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._offload = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def up(self, room: Tensor, buffer: Tensor | None, after: Any) -> Tensor:
        """In the upload stream."""
        assert buffer is not None, "a device has memory of its own"
        there = buffer[: len(room)]
        self._copy(self._upload, room, there, after)
        return there

    def mark(self) -> Any:
        """An event in the stream of the computation."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def down(self, bytes_there: Tensor, room: Tensor, after: Any) -> None:
        """In the offload stream."""
        self._copy(self._offload, bytes_there, room, after)

    def _copy(self, stream: Any, source: Tensor, target: Tensor, after: Any) -> None:
        with torch.cuda.stream(stream):
            if after is not None:
                stream.wait_event(after)
            target.copy_(source, non_blocking=True)
        stream.synchronize()


def block_transfer_for(device: torch.device) -> BlockTransfer:
    """The carrier of a device."""
    return CudaTransfer(device) if device.type == "cuda" else CpuTransfer()
