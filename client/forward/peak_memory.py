"""The memory of forward passes: its peak, and its reuse between steps."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from samara.shared.model.live_tensors import CountedTensors, MemoryAccount

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
"""Parameters of glibc's mallopt."""


def keep_freed_memory() -> None:
    """Have the C library reuse the memory that a step frees for the next step.

    By default glibc returns every large tensor to the system at once, and the system maps the pages
    of the next one again. Passes of other lengths leave holes in what is kept; where PyTorch lays
    large tensors into huge pages (`samara.shared.machine.HUGE_PAGES`), these are fewer. Without
    glibc this does nothing.
    """
    _mallopt(_M_MMAP_MAX, 0)
    _mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def share_heap() -> None:
    """Have threads that start from now on share one heap of the C library.

    By default each has one of its own, whose freed memory serves no other thread. Without glibc
    this does nothing.
    """
    _mallopt(_M_ARENA_MAX, 1)


def give_back_freed_memory() -> None:
    """Return to the system the memory that is free in the C library's heap.

    Passes of batches of different lengths leave holes in it that later ones do not fit. Without
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
        bytes: most bytes that tensors created inside the context held at once.
    """

    bytes: int = 0


@contextmanager
def measure_peak_memory(device: torch.device) -> Iterator[PeakMemory]:
    """Measure the most bytes that tensors created inside this context hold at once.

    On CUDA the allocator counts them. On a CPU every tensor that an operation returns is counted
    until it is freed; temporary memory inside an operation is not.
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
