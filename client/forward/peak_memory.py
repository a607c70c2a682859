"""The memory of forward passes: its peak, and its reuse between steps."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from shared.machine import HUGE_PAGES
from shared.model.live_tensors import CountedTensors, MemoryAccount

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
"""Parameters of glibc's mallopt."""
_MAPPED_BYTES = 2**20
_HUGE_PAGES_FILE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def keep_freed_memory() -> None:
    """Have steps allocate fast.

    By default glibc returns every large tensor to the system at once, and the system maps the
    pages of the next one again, 4 KiB at a time. In a process with `HUGE_PAGES` in its environment
    it maps 2 MiB at a time, where the system permits it, which is as fast as to use memory again:
    then every large tensor has pages of its own. Otherwise freed memory is kept for the next
    step; passes of different lengths leave holes in it. Without glibc this does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    if maps_huge_pages():
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
    else:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def maps_huge_pages() -> bool:
    """Return whether large tensors of this process lie in huge pages."""
    asked = all(os.environ.get(name) == value for name, value in HUGE_PAGES.items())
    with suppress(OSError):
        return asked and "[never]" not in _HUGE_PAGES_FILE.read_text()
    return False


def give_back_freed_memory() -> None:
    """Return to the system the memory that is free in the C library's heap.

    Passes of batches of different lengths leave holes in it that later ones do not fit. Without
    glibc this does nothing.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


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
