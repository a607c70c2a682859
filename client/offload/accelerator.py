"""Accelerators for an update schedule: a GPU, an emulated accelerator, or the CPU itself."""

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from samara.client.offload.emulated_link import Clock, EmulatedTransfer
from samara.client.offload.timeline import ACCELERATOR, HOST, Timeline
from samara.client.streaming.block_transfer import BlockTransfer, CpuTransfer, block_transfer_for
from samara.shared.model.live_tensors import CountedTensors, MemoryAccount


class Accelerator:
    """An accelerator, with transfers of tensors to and from the host.

    On a CPU, tensors stay in place. On CUDA, they pass through page-locked memory, in one stream
    per direction besides the computing stream.

    Args:
        transfer: transfer between host and accelerator.

    Attributes:
        clock: clock of the timeline.
        timeline: record of busy times.
    """

    def __init__(self, transfer: BlockTransfer) -> None:
        self.transfer = transfer
        self.clock = Clock()
        self.timeline = Timeline()

    def computing(self, work: str, layer: int) -> AbstractContextManager[None]:
        """Return a context for work on the accelerator by this thread."""
        return nullcontext()

    def switch(self, work: str, layer: int) -> None:
        """Record that this thread's work on the accelerator continues with another layer."""

    def pausing(self) -> AbstractContextManager[None]:
        """Return a context in which this thread does not occupy the accelerator."""
        return nullcontext()

    def updating(self, layer: int) -> AbstractContextManager[None]:
        """Return a context for work on the host by this thread."""
        return nullcontext()

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Register tensors as held in the accelerator's memory until they are freed.

        Raises:
            DeviceError: if the tensors do not fit into an emulated accelerator's memory.
        """

    def hold_on_host(self, tensors: Iterable[Tensor]) -> None:
        """Register tensors as held in host memory until they are freed."""

    def to_host(self, tensors: Sequence[Tensor], event: object) -> list[Tensor]:
        """Copy tensors to the host, wait for the copies, and return them.

        Args:
            tensors: tensors on the accelerator.
            event: result of `transfer.record_event`, recorded after the tensors were written.
        """
        if isinstance(self.transfer, CpuTransfer):
            return list(tensors)
        copies = []
        for tensor in tensors:
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self.transfer.pinned)
            self.hold_on_host([copy])
            source = tensor.contiguous()
            if source is not tensor:  # the caller's event does not cover this thread's copy
                event = self.transfer.record_event()
            self.transfer.offload(_bytes(source), _bytes(copy), event)
            copies.append(copy)
        return copies

    def to_device(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copy tensors to the accelerator, wait for the copies, and return them.

        Args:
            tensors: tensors on the host.

        Raises:
            DeviceError: if the copies do not fit into an emulated accelerator's memory.
        """
        if isinstance(self.transfer, CpuTransfer):
            return list(tensors)
        copies = []
        for tensor in tensors:
            source = tensor.contiguous().pin_memory() if self.transfer.pinned else tensor
            copy = self._allocate(tensor)
            # Earlier work that still uses the copy's memory must end first.
            event = self.transfer.record_event()
            self.transfer.upload(_bytes(source.contiguous()), _bytes(copy), event)
            copies.append(copy)
        return copies

    def _allocate(self, like: Tensor) -> Tensor:
        return torch.empty(like.shape, dtype=like.dtype, device=self.transfer.device)


class EmulatedAccelerator(Accelerator):
    """An accelerator with separate memory, emulated by one CPU core; another core is the host.

    The emulated time of work is the CPU time of the working thread, multiplied by a stretch factor.
    Torch may therefore use only one thread. If other processes delay a thread, the emulation
    catches up: the thread sleeps less during the work that follows. Each of the two processors
    serves work in the order of arrival, as in a CUDA stream.

    Args:
        memory_bytes: size of the accelerator's memory; None for no limit.
        link: link to the host.
        stretch: factor by which work on the accelerator takes longer.
        host_stretch: factor by which work on the host takes longer.
        cores: CPU cores for accelerator and host; None leaves the choice to the system.

    Attributes:
        memory: account of the accelerator's memory.
        host_memory: account of the optimizer's tensors in host memory.
    """

    def __init__(
        self,
        memory_bytes: int | None,
        link: EmulatedTransfer,
        stretch: float = 1.0,
        host_stretch: float = 1.0,
        cores: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(link)
        self.memory, self.host_memory = MemoryAccount(memory_bytes), MemoryAccount()
        core, host_core = cores or (None, None)
        self._processor = _Processor(ACCELERATOR, stretch, core, self)
        self._host = _Processor(HOST, host_stretch, host_core, self)

    @contextmanager
    def computing(self, work: str, layer: int) -> Iterator[None]:
        """Occupy the accelerator inside the context, and count the tensors allocated there."""
        with self._processor.working(work, layer), CountedTensors(self.memory):
            yield

    def switch(self, work: str, layer: int) -> None:
        """End the current work, let waiting threads go first, and begin other work."""
        if self._processor.is_mine:
            self._processor.enter(work, layer, ready_at=self._processor.leave())

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Release the accelerator inside the context if this thread occupies it."""
        if not self._processor.is_mine:
            yield
            return
        label = self._processor.label
        self._processor.leave()
        try:
            yield
        finally:
            self._processor.enter(*label, ready_at=self.clock.now())

    @contextmanager
    def updating(self, layer: int) -> Iterator[None]:
        """Occupy the host inside the context, and count the tensors allocated there."""
        with self._host.working("update", layer), CountedTensors(self.host_memory):
            yield

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that were allocated outside `computing` as accelerator memory."""
        for tensor in tensors:
            self.memory.count(tensor.untyped_storage())

    def hold_on_host(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors in host memory."""
        for tensor in tensors:
            self.host_memory.count(tensor.untyped_storage())

    def _allocate(self, like: Tensor) -> Tensor:
        with CountedTensors(self.memory):
            return super()._allocate(like)


class _Processor:
    """An emulated processor, which works for one thread at a time."""

    def __init__(
        self, lane: str, stretch: float, core: int | None, accelerator: Accelerator
    ) -> None:
        self._lane, self._stretch, self._core = lane, stretch, core
        self._accelerator = accelerator
        self._turn = _Turn()
        self.label = ("", 0)
        self._owner: int | None = None
        self._start = self._end = self._processor_start = 0.0
        self._allowed: set[int] | None = None

    @contextmanager
    def working(self, work: str, layer: int) -> Iterator[None]:
        self.enter(work, layer, self._accelerator.clock.now())
        try:
            yield
        finally:
            self.leave()

    def enter(self, work: str, layer: int, ready_at: float) -> None:
        """Occupy the processor once it is free, for work that is ready at a given time."""
        self._turn.take()
        self._owner = threading.get_ident()
        if self._core is not None:
            self._allowed = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {self._core})
        self.label = (work, layer)
        self._start, self._processor_start = max(ready_at, self._end), time.thread_time()

    @property
    def is_mine(self) -> bool:
        """True if this thread occupies the processor."""
        return self._owner == threading.get_ident()

    def leave(self) -> float:
        """End the work, release the processor, and return the emulated time of the end."""
        used = (time.thread_time() - self._processor_start) * self._stretch
        self._end = end = self._start + used
        self._accelerator.clock.sleep_until(end)
        self._accelerator.timeline.record(self._lane, *self.label, self._start, end)
        if self._allowed is not None:
            os.sched_setaffinity(0, self._allowed)
        self._owner = None
        self._turn.give_back()
        return end


class _Turn:
    """A lock that threads receive in the order of their requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Event] = deque()

    def take(self) -> None:
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            mine = threading.Event()
            self._waiting.append(mine)
        mine.wait()

    def give_back(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False


def accelerator_for(device: torch.device) -> Accelerator:
    """Return the accelerator for a torch device."""
    return Accelerator(block_transfer_for(device))


def _bytes(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor's memory as uint8."""
    return tensor.view(-1).view(torch.uint8)
