"""Transfers of blocks between the host's memory and the torch device that computes with them.

On a CPU no transfer is needed. On CUDA three streams work side by side (ZO2, section 5.2): one
uploads, one computes, one offloads. An upload waits until the computation with the previous block
in the same buffer has finished, an offload until the computation with its own block has; each waits
in a thread of its own, so that neither delays anything else.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor


class BlockTransfer(ABC):
    """A transfer of blocks between the host's memory and a torch device.

    Attributes:
        device: torch device that computes with the blocks.
        pinned: whether the host's memory should be page-locked.
    """

    device: torch.device
    pinned: bool

    @abstractmethod
    def upload(self, host_buffer: Tensor, device_buffer: Tensor | None, event: Any) -> Tensor:
        """Transfer a block to the device, and return its bytes there, uint8, once complete.

        Args:
            host_buffer: the block in the host's memory, uint8.
            device_buffer: memory on the device, uint8, at least as large; None if the device
                computes in the host's memory.
            event: return value of `record_event` from when the device buffer was last used or
                allocated.
        """

    @abstractmethod
    def record_event(self) -> Any:
        """Record the end of all work that the device has been given so far."""

    @abstractmethod
    def offload(self, device_bytes: Tensor, host_buffer: Tensor, event: Any) -> None:
        """Transfer a block back to the host, and return once it is complete.

        Args:
            device_bytes: return value of `upload`.
            host_buffer: memory of the host for the block, uint8.
            event: return value of `record_event` from when the block was last written.
        """


class CpuTransfer(BlockTransfer):
    """A transfer without copies: the CPU computes in the host's memory."""

    device, pinned = torch.device("cpu"), False

    def upload(self, host_buffer: Tensor, device_buffer: Tensor | None, event: Any) -> Tensor:
        """Return the host's buffer itself."""
        return host_buffer

    def record_event(self) -> Any:
        """Return None: the CPU has finished when a call returns."""
        return None

    def offload(self, device_bytes: Tensor, host_buffer: Tensor, event: Any) -> None:
        """Do nothing: the bytes are in the host's memory."""


class CudaTransfer(BlockTransfer):
    """A transfer from page-locked memory, with one CUDA stream for each direction.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.pinned = device, True
        self._upload_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._offload_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def upload(self, host_buffer: Tensor, device_buffer: Tensor | None, event: Any) -> Tensor:
        """Copy the block in the upload stream."""
        assert device_buffer is not None, "a CUDA device computes in memory of its own"
        device_bytes = device_buffer[: len(host_buffer)]
        self._copy(self._upload_stream, host_buffer, device_bytes, event)
        return device_bytes

    def record_event(self) -> Any:
        """Record an event in the stream that computes."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def offload(self, device_bytes: Tensor, host_buffer: Tensor, event: Any) -> None:
        """Copy the block in the offload stream."""
        self._copy(self._offload_stream, device_bytes, host_buffer, event)

    def _copy(self, stream: Any, source: Tensor, target: Tensor, event: Any) -> None:
        with torch.cuda.stream(stream):
            if event is not None:
                stream.wait_event(event)
            target.copy_(source, non_blocking=True)
        stream.synchronize()


def block_transfer_for(device: torch.device) -> BlockTransfer:
    """Return the block transfer for a torch device."""
    return CudaTransfer(device) if device.type == "cuda" else CpuTransfer()
