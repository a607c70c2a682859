"""Caches of the trunk's outputs between passes, steps and runs, under a byte budget.

The outputs of the layers below the adapters are equal under all perturbations and never change. A
cache in memory stores outputs exactly. A cache on disk stores outputs in half precision. It also
rounds newly computed outputs, so that results do not depend on the content of the cache.
"""

import os
import threading
import zlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from samara.shared.errors import ConfigError, ModelError
from samara.shared.model.cache_key import cache_key, model_inputs
from samara.shared.model.loading import BaseModel

Ids = tuple[int, ...]
_KIND = "trunk 2"
_CHECKSUM_BYTES = 4


class TrunkCache(ABC):
    """A thread-safe cache with one tensor [S, hidden] per token sequence.

    The least recently used tensor is evicted first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def get(self, ids: Ids) -> Tensor | None:
        """Return the output that `put` returned for a sequence; None if missing or damaged."""
        with self._lock:
            return self._get(ids)

    def put(self, ids: Ids, output: Tensor) -> Tensor:
        """Store an output, and return it as `get` will return it, rounded to the cache's type.

        Raises:
            ModelError: if a value is outside the range of the cache's type.
            ConfigError: if the output cannot be written.
        """
        with self._lock:
            return self._put(ids, output)

    @abstractmethod
    def _get(self, ids: Ids) -> Tensor | None: ...

    @abstractmethod
    def _put(self, ids: Ids, output: Tensor) -> Tensor: ...


class MemoryCache(TrunkCache):
    """A cache in memory, which stores outputs exactly and never evicts the latest output.

    Args:
        limit: maximum total size of the outputs, in bytes.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit, self._bytes = limit, 0
        self._outputs: OrderedDict[tuple[int, Ids], Tensor] = OrderedDict()

    def _get(self, ids: Ids) -> Tensor | None:
        key = torch.get_num_threads(), ids
        if key in self._outputs:
            self._outputs.move_to_end(key)
        return self._outputs.get(key)

    def _put(self, ids: Ids, output: Tensor) -> Tensor:
        key = torch.get_num_threads(), ids
        if (replaced := self._outputs.pop(key, None)) is not None:
            self._bytes -= replaced.nbytes
        self._outputs[key] = output
        self._bytes += output.nbytes
        while self._bytes > self._limit and len(self._outputs) > 1:
            _, dropped = self._outputs.popitem(last=False)
            self._bytes -= dropped.nbytes
        return output


class DiskCache(TrunkCache):
    """A cache with one checksummed file per sequence, usually in half precision.

    A file's name is a hash of the sequence and of everything else that determines the output,
    such as the model. So a cache never reads a file of another model or task. The files that were
    read least recently are evicted first.

    Args:
        folder: folder of the files; runs and processes may share it.
        limit: maximum total size of the files, in bytes.
        identity: hash of all inputs that determine the outputs, except the sequence and the number
            of threads.
        hidden: number of columns of an output.
        exact: whether outputs are stored in single precision and may have a different number of
            rows than their sequence.

    Raises:
        ConfigError: if the folder cannot be created or read.
    """

    def __init__(
        self, folder: Path, limit: int, identity: bytes, hidden: int, exact: bool = False
    ) -> None:
        super().__init__()
        self._folder, self._limit, self._identity = folder, limit, identity
        self._hidden, self._exact = hidden, exact
        self._dtype = np.dtype("<f4" if exact else "<f2")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            files = [(file.stat(), file.name) for file in folder.glob("*.trunk")]
        except OSError as error:
            raise self._folder_error(error) from error
        self._sizes = OrderedDict(
            (name, stat.st_size) for stat, name in sorted(files, key=lambda f: f[0].st_mtime_ns)
        )
        self._bytes = sum(self._sizes.values())
        self._remove_oldest()

    def _get(self, ids: Ids) -> Tensor | None:
        file = self._file(ids)
        try:
            data = file.read_bytes()
            os.utime(file)
        except OSError:
            return None
        content = data[_CHECKSUM_BYTES:]
        rows, rest = divmod(len(content), self._dtype.itemsize * self._hidden)
        if (
            rest
            or not (self._exact or rows == len(ids))
            or zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "little") != data[:_CHECKSUM_BYTES]
        ):
            return None
        self._record_size(file.name, len(data))
        numbers = np.frombuffer(content, self._dtype).reshape(rows, self._hidden)
        return torch.from_numpy(numbers.copy())

    def _put(self, ids: Ids, output: Tensor) -> Tensor:
        rounded = output.to("cpu", torch.float32 if self._exact else torch.float16)
        if not bool(torch.isfinite(rounded).all()):
            raise ModelError(
                "an output of the layers below the adapters is outside the range of half "
                "precision; leave trunk-cache-folder empty to keep unrounded outputs in memory"
            )
        content = rounded.numpy().astype(self._dtype).tobytes()
        data = zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "little") + content
        if len(data) <= self._limit:
            file = self._file(ids)
            temporary = file.with_suffix(f".{os.getpid()}")
            try:
                temporary.write_bytes(data)
                os.replace(temporary, file)
            except OSError as error:
                temporary.unlink(missing_ok=True)
                raise self._folder_error(error) from error
            self._record_size(file.name, len(data))
            self._remove_oldest()
        return rounded

    def _file(self, ids: Ids) -> Path:
        key = cache_key("sequence", of=self._identity, threads=torch.get_num_threads(), ids=ids)
        return self._folder / f"{key.hex()}.trunk"

    def _record_size(self, name: str, size: int) -> None:
        self._bytes += size - self._sizes.pop(name, 0)
        self._sizes[name] = size

    def _remove_oldest(self) -> None:
        while self._bytes > self._limit:
            name, size = self._sizes.popitem(last=False)
            (self._folder / name).unlink(missing_ok=True)
            self._bytes -= size

    def _folder_error(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"trunk-cache-folder = {self._folder}: cannot be used: {error.strerror}; name a "
            "writable folder, or leave the setting empty to keep the outputs in memory"
        )


def make_trunk_cache(
    base: BaseModel, first_block: int, limit: int, folder: Path | None = None
) -> TrunkCache | None:
    """Return a cache of the trunk's outputs, or None if there is no trunk or the limit is 0.

    Args:
        base: the model.
        first_block: index of the lowest block that differs between perturbations.
        limit: maximum total size of the outputs, in bytes.
        folder: folder for a cache on disk, in half precision; None keeps outputs in memory.

    Raises:
        ConfigError: if the folder cannot be used.
    """
    if not (limit and first_block):
        return None
    if folder is None:
        return MemoryCache(limit)
    key = cache_key(_KIND, model=model_inputs(base), first_block=first_block)
    return DiskCache(folder, limit, key, base.network.config.get_text_config().hidden_size)
