"""The bytes of the tensors that operations create, counted until they are freed."""

import threading
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from samara.shared.errors import DeviceError


class MemoryAccount:
    """The storages that are alive, shared by threads.

    Args:
        limit: most bytes; None for no limit.

    Attributes:
        bytes: bytes of the storages that are alive.
        peak: most bytes at once.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.bytes = self.peak = 0
        self._limit = limit
        self._counted: set[int] = set()
        # A storage may be freed by a garbage collection while this thread holds the lock.
        self._lock = threading.RLock()

    def count(self, storage: torch.UntypedStorage) -> None:
        """Count a storage until it is freed, once.

        Raises:
            DeviceError: if it does not fit.
        """
        key, size = storage._cdata, storage.nbytes()
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
    """A context whose operations' results are counted; memory inside an operation is not.

    Args:
        account: account that counts.
    """

    def __init__(self, account: MemoryAccount) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._account = account

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        inputs = {_key(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        output = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor) and _key(tensor) not in inputs:
                self._account.count(tensor.untyped_storage())
        return output


def _key(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key
