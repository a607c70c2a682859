"""The memory of forward passes: its peak, and its reuse between steps."""

import ctypes
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Parameters of glibc's mallopt."""


def keep_freed_memory() -> None:
    """Have the C library reuse the memory that a step frees for the next step.

    By default glibc returns every large tensor to the system at once, and the system maps the pages
    of the next one again. Without glibc this does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


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
        with _LiveTensors() as live:
            yield peak
        peak.bytes = live.peak


class _LiveTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A counter of the bytes of storages that operations create, until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self._bytes = 0
        self._counted: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        inputs = {self._key(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        output = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor) and self._key(tensor) not in self._counted | inputs:
                self._count(tensor.untyped_storage())
        return output

    @staticmethod
    def _key(tensor: Tensor) -> int:
        key: int = tensor.untyped_storage()._cdata
        return key

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._counted.add(key)
        self._bytes += size
        self.peak = max(self.peak, self._bytes)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._counted.discard(key)
        self._bytes -= size
