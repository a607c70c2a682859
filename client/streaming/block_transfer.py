"""Transfers of blocks between host memory and the torch device that computes with them.

A CPU needs no transfer. On CUDA three streams run in parallel (ZO2, section 5.2): upload, compute
and offload. An upload waits for the computation with the previous block in the same buffer. An
offload waits for the computation with the offloaded block. Uploads and offloads wait in separate
threads, so the waits delay no other work.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor


class BlockTransfer(ABC):
    """A transfer of blocks between host memory and a torch device.

    Attributes:
        device: torch device that computes with the blocks.
        pinned: whether host memory should be page-locked.
    """

    device: torch.device
    pinned: bool

    @abstractmethod
    def upload(self, host_buffer: Tensor, device_buffer: Tensor | None, event: Any) -> Tensor:
        """Transfer a block to the device, wait for completion, and return its bytes there, uint8.

        Args:
            host_buffer: the block in host memory, uint8.
            device_buffer: memory on the device, uint8, at least as large as the host buffer; None
                if the device computes in host memory.
            event: return value of `record_event` after the device buffer's last use or its
                allocation.
        """

    @abstractmethod
    def record_event(self) -> Any:
        """Return an event that marks the end of all work submitted to the device so far."""

    @abstractmethod
    def offload(self, device_bytes: Tensor, host_buffer: Tensor, event: Any) -> None:
        """Transfer a block back to the host, and wait for completion.

        Args:
            device_bytes: return value of `upload`.
            host_buffer: host memory for the block, uint8.
            event: return value of `record_event` after the last write to the block.
        """


class CpuTransfer(BlockTransfer):
    """A transfer without copies: the CPU computes in host memory."""

    device, pinned = torch.device("cpu"), False

    def upload(self, host_buffer: Tensor, device_buffer: Tensor | None, event: Any) -> Tensor:
        """Return the host buffer itself."""
        return host_buffer

    def record_event(self) -> Any:
        """Return None, because work on a CPU has finished when a call returns."""
        return None

    def offload(self, device_bytes: Tensor, host_buffer: Tensor, event: Any) -> None:
        """Do nothing, because the bytes are already in host memory."""


class CudaTransfer(BlockTransfer):
    """A transfer from and to page-locked memory, with one CUDA stream for each direction.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.pinned = device, True
        self._upload_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._offload_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def upload(self, host_buffer: Tensor, device_buffer: Tensor | None, event: Any) -> Tensor:
        """Copy the block in the upload stream."""
        assert device_buffer is not None, "a CUDA device computes in its own memory"
        device_bytes = device_buffer[: len(host_buffer)]
        self._copy(self._upload_stream, host_buffer, device_bytes, event)
        return device_bytes

    def record_event(self) -> Any:
        """Return an event recorded in the computing stream."""
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
