"""Outputs of the layers below the adapters, kept between passes, steps and runs, within bytes.

They are the same for every point and never change, so they are worth keeping. In memory they are
kept as they are; on disk in half precision, and then also what was just computed is rounded, so
that a number does not depend on whether it was found or made.
"""

import hashlib
import os
import threading
import zlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shared.errors import ConfigError, ModelError
from shared.model.loading import BaseModel

Ids = tuple[int, ...]
_CHECKSUM_BYTES = 4


class TrunkCache(ABC):
    """Keeps a tensor [S, hidden] per token sequence; forgets the least recently used first.

    Threads may share one.
    """

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()

    def get(self, ids: Ids) -> Tensor | None:
        """What is kept for a sequence, as `put` returned it; a damaged file counts as nothing."""
        with self._one_at_a_time:
            return self._get(ids)

    def put(self, ids: Ids, output: Tensor) -> Tensor:
        """Keep an output; returns what a later `get` would.

        Raises:
            ModelError: if it does not fit the form that it is kept in.
            ConfigError: if it cannot be written.
        """
        with self._one_at_a_time:
            return self._put(ids, output)

    @abstractmethod
    def _get(self, ids: Ids) -> Tensor | None: ...

    @abstractmethod
    def _put(self, ids: Ids, output: Tensor) -> Tensor: ...


class MemoryCache(TrunkCache):
    """Keeps outputs in memory, exactly; at least the latest one.

    Args:
        limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit, self._bytes = limit, 0
        self._kept: OrderedDict[Ids, Tensor] = OrderedDict()

    def _get(self, ids: Ids) -> Tensor | None:
        if ids in self._kept:
            self._kept.move_to_end(ids)
        return self._kept.get(ids)

    def _put(self, ids: Ids, output: Tensor) -> Tensor:
        if (known := self._kept.pop(ids, None)) is not None:
            self._bytes -= known.nbytes
        self._kept[ids] = output
        self._bytes += output.nbytes
        while self._bytes > self._limit and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.nbytes
        return output


class DiskCache(TrunkCache):
    """Keeps outputs as half-precision files, one per sequence, each with a checksum.

    A file's name is a hash of the sequence and of everything else that the output depends on, so
    the files of another model are never read; they make room as they grow old.

    Args:
        folder: may be shared by runs and processes.
        limit: bytes of all files in it.
        identity: what the outputs depend on besides the sequence, the model id first of all.
        hidden: columns of an output.

    Raises:
        ConfigError: if the folder cannot be made or read.
    """

    def __init__(self, folder: Path, limit: int, identity: bytes, hidden: int) -> None:
        super().__init__()
        self._folder, self._limit, self._identity = folder, limit, identity
        self._hidden = hidden
        try:
            folder.mkdir(parents=True, exist_ok=True)
            files = [(file.stat(), file.name) for file in folder.glob("*.trunk")]
        except OSError as error:
            raise self._unusable(error) from error
        self._sizes = OrderedDict(
            (name, stat.st_size) for stat, name in sorted(files, key=lambda f: f[0].st_mtime_ns)
        )
        self._bytes = sum(self._sizes.values())
        self._make_room()

    def _get(self, ids: Ids) -> Tensor | None:
        file = self._file(ids)
        try:
            data = file.read_bytes()
            os.utime(file)
        except OSError:
            return None
        content = data[_CHECKSUM_BYTES:]
        if (
            len(content) != 2 * len(ids) * self._hidden
            or zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "little") != data[:_CHECKSUM_BYTES]
        ):
            return None
        self._note(file.name, len(data))
        numbers = np.frombuffer(content, "<f2").reshape(len(ids), self._hidden)
        return torch.from_numpy(numbers.copy())

    def _put(self, ids: Ids, output: Tensor) -> Tensor:
        rounded = output.to("cpu", torch.float16)
        if not bool(torch.isfinite(rounded).all()):
            raise ModelError(
                "an output of the layers below the adapters is beyond half precision; "
                "leave trunk-cache-folder empty to keep them in memory as they are"
            )
        content = rounded.numpy().astype("<f2").tobytes()
        data = zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "little") + content
        if len(data) <= self._limit:
            file = self._file(ids)
            temporary = file.with_suffix(f".{os.getpid()}")
            try:
                temporary.write_bytes(data)
                os.replace(temporary, file)
            except OSError as error:
                temporary.unlink(missing_ok=True)
                raise self._unusable(error) from error
            self._note(file.name, len(data))
            self._make_room()
        return rounded

    def _file(self, ids: Ids) -> Path:
        key = hashlib.sha256(self._identity + np.array(ids, "<i8").tobytes())
        return self._folder / f"{key.hexdigest()}.trunk"

    def _note(self, name: str, size: int) -> None:
        self._bytes += size - self._sizes.pop(name, 0)
        self._sizes[name] = size

    def _make_room(self) -> None:
        while self._bytes > self._limit:
            name, size = self._sizes.popitem(last=False)
            (self._folder / name).unlink(missing_ok=True)
            self._bytes -= size

    def _unusable(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"trunk-cache-folder = {self._folder}: cannot be used: {error.strerror}; give a folder "
            "that can be written, or none to keep the outputs in memory"
        )


def make_trunk_cache(
    base: BaseModel, first_block: int, limit: int, folder: Path | None = None
) -> TrunkCache | None:
    """A cache for the trunk's outputs, or none if there is no trunk or no room.

    Args:
        base: the model.
        first_block: the lowest block that differs between points.
        limit: bytes.
        folder: where they are kept, in half precision; by default in memory, as they are.

    Raises:
        ConfigError: if the folder cannot be used.
    """
    if not (limit and first_block):
        return None
    if folder is None:
        return MemoryCache(limit)
    kind = f"{base.quantization} {base.network.dtype} {first_block}"
    return DiskCache(folder, limit, base.model_id + kind.encode(), base.network.config.hidden_size)
