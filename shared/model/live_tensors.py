"""Accounting of the memory of live tensors."""

import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from samara.shared.errors import DeviceError


class MemoryAccount:
    """A count of the bytes in live tensor storages, over all threads.

    Args:
        limit: largest total size in bytes; None for no limit.

    Attributes:
        bytes: total size of the storages that are alive now.
        peak: largest total size so far, in bytes.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.bytes = self.peak = 0
        self._limit = limit
        self._counted: set[int] = set()
        # Garbage collection may free a storage while this thread holds the lock.
        self._lock = threading.RLock()

    def count(self, storage: torch.UntypedStorage) -> None:
        """Add a storage's bytes, and subtract them when it is freed; count each storage once.

        Raises:
            DeviceError: if the total size would exceed the limit.
        """
        key = storage._cdata
        size = storage.nbytes()
        with self._lock:
            if key in self._counted:
                return
            if self._limit is not None and self.bytes + size > self._limit:
                raise DeviceError(
                    f"the emulated accelerator's memory of {self._limit / 2**20:,.1f} MiB is too "
                    f"small: {self.bytes / 2**20:,.1f} MiB are in use and {size / 2**20:,.1f} MiB "
                    "more are needed; use a smaller batch, offload (--optimizer lsp or "
                    "zero-offload), or raise the limit"
                )
            self._counted.add(key)
            self.bytes += size
            self.peak = max(self.peak, self.bytes)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        with self._lock:
            self._counted.discard(key)
            self.bytes -= size


class CountedTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that counts the memory of all operations' results, without temporary buffers.

    Args:
        account: account to which the results are added.
    """

    def __init__(self, account: MemoryAccount) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._account = account

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = {_key(tensor) for tensor in _tensors((*args, *kwargs.values()))}
        output = func(*args, **kwargs)
        for tensor in _tensors((output,)):
            if _key(tensor) not in inputs:
                self._account.count(tensor.untyped_storage())
        return output


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors in an operation's arguments or results, including those in nested lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _key(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key
