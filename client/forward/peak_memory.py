"""Peak memory of forward passes, and reuse of memory between steps."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from samara.shared.model.live_tensors import CountedTensors, MemoryAccount

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8
"""Numbers of parameters of glibc's function mallopt."""
_SMALL = 2**20
_LARGEST = 2**25
"""Largest mmap threshold in bytes that glibc chooses by itself on 64-bit systems."""


def keep_freed_memory() -> None:
    """Make the C library reuse the memory freed by a step for the next step.

    By default glibc returns a freed large tensor's memory to the system at once, and the system has
    to map new pages for the next tensor. Kept memory has a cost: passes of different lengths leave
    holes in it. There are fewer holes if PyTorch puts large tensors into huge pages
    (`samara.shared.machine.process.HUGE_PAGES`). Without glibc this does nothing.
    """
    _mallopt(_M_MMAP_MAX, 0)
    _mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


@contextmanager
def return_freed_memory() -> Iterator[None]:
    """Make the C library return the memory of freed large tensors to the system immediately.

    By default glibc puts tensors of up to 32 MiB into its heap. While a model is quantized, freed
    tensors and tensors that stay alternate in the heap. The heap then cannot shrink, and the freed
    memory is not returned. Without glibc this does nothing.
    """
    _mallopt(_M_MMAP_THRESHOLD, _SMALL)
    try:
        yield
    finally:
        _mallopt(_M_MMAP_THRESHOLD, _LARGEST)


def share_heap() -> None:
    """Make all threads that start from now on share one heap of the C library.

    By default each thread has a separate heap, and other threads cannot reuse its freed memory.
    Without glibc this does nothing.
    """
    _mallopt(_M_ARENA_MAX, 1)


def give_back_freed_memory() -> None:
    """Return free memory in the C library's heap to the system.

    Batches of different lengths leave holes in the heap that do not fit later batches. Without
    glibc this does nothing.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _mallopt(parameter: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)


class PeakMemory:
    """The result of `measure_peak_memory`.

    Attributes:
        bytes: peak size in bytes of the tensors created inside the context; set at its end.
    """

    bytes: int = 0


@contextmanager
def measure_peak_memory(device: torch.device) -> Iterator[PeakMemory]:
    """Measure the peak size in bytes of the tensors created inside this context.

    On CUDA, the allocator measures the peak. On a CPU, every tensor returned by an operation counts
    until it is freed, but the temporary memory inside an operation does not count.
    """
    peak = PeakMemory()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        torch.cuda.synchronize(device)
        peak.bytes = torch.cuda.max_memory_allocated(device) - before
    else:
        account = MemoryAccount()
        with CountedTensors(account):
            yield peak
        peak.bytes = account.peak
