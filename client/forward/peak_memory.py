"""Memory of the forward: kept between steps, and measured at its peak."""

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
    """Have the C library keep the memory that a step frees, for the next step.

    By default glibc returns every large tensor to the system at once, and the next one is paid for
    page by page. Where there is no glibc nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


class PeakMemory:
    """The result of `peak_memory`.

    Attributes:
        bytes: at most held at once by tensors made during the work.
    """

    bytes: int = 0


@contextmanager
def measure_peak_memory(device: torch.device) -> Iterator[PeakMemory]:
    """Measure the most bytes that tensors hold during the work inside.

    On CUDA the allocator knows. On a CPU every tensor that an operation gives is counted while it
    lives; scratch space inside an operation is not.
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
    """Counts the bytes of storages that operations make, until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self._bytes = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        inputs = {self._key(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        output = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor) and self._key(tensor) not in self._known | inputs:
                self._count(tensor.untyped_storage())
        return output

    @staticmethod
    def _key(tensor: Tensor) -> int:
        key: int = tensor.untyped_storage()._cdata
        return key

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._known.add(key)
        self._bytes += size
        self.peak = max(self.peak, self._bytes)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._bytes -= size
