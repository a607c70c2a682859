"""Where blocks wait: files on disk, or the host's memory.

A store gives each block a room in the host's memory, fills it, and keeps what was changed in it.
The files of a checkpoint are read as they are and never written; what is trained is a copy.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from client.streaming.packed_block import PackedBlock
from client.streaming.reading import PIECE_BYTES, READERS, Read, read
from client.streaming.tensor_locations import TensorLocation, tensor_locations
from shared.errors import ModelError


class BlockStore(ABC):
    """The blocks of a model.

    Attributes:
        buckets: how each of them lies in its room.
    """

    packed_blocks: Sequence[PackedBlock]

    @property
    def largest(self) -> int:
        """Bytes of the largest block."""
        return max(packed_block.bytes for packed_block in self.packed_blocks)

    @property
    def bytes(self) -> int:
        """Of all blocks."""
        return sum(packed_block.bytes for packed_block in self.packed_blocks)

    @property
    @abstractmethod
    def in_memory(self) -> bool:
        """Whether the rooms are the store itself."""

    @abstractmethod
    def room(self, block: int, stage: Tensor | None) -> Tensor:
        """The host memory that a block passes through, uint8 [its bytes].

        Args:
            block: which.
            stage: uint8 [largest], used unless the store is in memory.
        """

    @abstractmethod
    def fetch(self, block: int, room: Tensor) -> None:
        """Fill a block's room.

        Raises:
            ModelError: if a file is missing, truncated, or cannot be read.
        """

    @abstractmethod
    def keep(self, block: int, room: Tensor) -> None:
        """Keep what is in a block's room.

        Raises:
            ModelError: if it cannot be written.
        """


class FileStore(BlockStore):
    """Blocks in safetensors files.

    Args:
        places: of each block's tensors by their names in the block.
        buckets: the same tensors in the same types, as they are to lie in memory.
        writable: whether `keep` may write into the files.
        read: how a piece of a file is read.
    """

    def __init__(
        self,
        places: Sequence[Mapping[str, TensorLocation]],
        packed_blocks: Sequence[PackedBlock],
        writable: bool = False,
        read: Read = read,
    ) -> None:
        self.packed_blocks = packed_blocks
        self._places, self._writable, self._read = places, writable, read
        self._readers = ThreadPoolExecutor(READERS, "block-reader")

    @property
    def in_memory(self) -> bool:
        """No."""
        return False

    def room(self, block: int, stage: Tensor | None) -> Tensor:
        """In the stage."""
        assert stage is not None, "blocks in files pass through a stage"
        return stage[: self.packed_blocks[block].bytes]

    def fetch(self, block: int, room: Tensor) -> None:
        """Read it from the disk, several pieces at a time."""
        memory = _bytes_of(room)
        jobs: list[Future[None]] = []
        for part in self.packed_blocks[block].parts:
            place = self._places[block][part.name]
            for start in range(0, part.bytes, PIECE_BYTES):
                size = min(PIECE_BYTES, part.bytes - start)
                piece = memory[part.first + start : part.first + start + size]
                jobs.append(
                    self._readers.submit(self._read, place.file, place.first + start, piece)
                )
        for job in jobs:
            job.exception()  # all of them have let go of the room, also where one fails
        for job in jobs:
            job.result()

    def keep(self, block: int, room: Tensor) -> None:
        """Write it into its file."""
        assert self._writable, "the files of a checkpoint are never written"
        memory = _bytes_of(room)
        for part in self.packed_blocks[block].parts:
            place = self._places[block][part.name]
            _write(place.file, place.first, memory[part.first : part.first + part.bytes])


class HostStore(BlockStore):
    """Blocks in the host's memory, page-locked where that makes transfers faster.

    Args:
        source: where they come from.
        dtype: that floats are kept in; None is as in the source.
        pinned: page-locked.
        model: type of the model, which floats are rounded to on the way; None is none.

    Raises:
        ModelError: if there is not enough memory, or the source cannot be read.
    """

    def __init__(
        self,
        source: BlockStore,
        dtype: torch.dtype | None = None,
        pinned: bool = False,
        model: torch.dtype | None = None,
    ) -> None:
        self.packed_blocks = [
            packed_block.with_dtype(dtype) for packed_block in source.packed_blocks
        ]
        self._rooms = []
        for block, packed_block in enumerate(self.packed_blocks):
            room = allocate(packed_block.bytes, torch.device("cpu"), pinned)
            _converted(source, block, packed_block, room, model)
            self._rooms.append(room)

    @property
    def in_memory(self) -> bool:
        """Yes."""
        return True

    def room(self, block: int, stage: Tensor | None) -> Tensor:
        """Its own."""
        return self._rooms[block]

    def fetch(self, block: int, room: Tensor) -> None:
        """It is there."""

    def keep(self, block: int, room: Tensor) -> None:
        """It is there."""


def copy_to_files(
    source: BlockStore,
    folder: Path,
    dtype: torch.dtype | None,
    model: torch.dtype | None = None,
) -> FileStore:
    """A copy of all blocks in files of their own, which may be written.

    Args:
        source: where they come from.
        folder: gets a file per block; those of an earlier copy are replaced.
        dtype: that floats are kept in; None is as in the source.
        model: type of the model, which floats are rounded to on the way; None is none.

    Raises:
        ModelError: if the source cannot be read or the folder not be written.
    """
    packed_blocks = [packed_block.with_dtype(dtype) for packed_block in source.packed_blocks]
    places = []
    for block, packed_block in enumerate(packed_blocks):
        room = allocate(packed_block.bytes, torch.device("cpu"))
        _converted(source, block, packed_block, room, model)
        places.append(write_block_file(folder, block, packed_block.views(room)))
    return FileStore(places, packed_blocks, writable=True)


def write_block_file(
    folder: Path, block: int, tensors: Mapping[str, Tensor]
) -> dict[str, TensorLocation]:
    """Write a block's file, whole or not at all; returns where its tensors lie, in their order.

    Raises:
        ModelError: if it cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    file = folder / f"block-{block:05d}.safetensors"
    temporary = file.with_suffix(f".{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(dict(tensors), temporary)
        os.replace(temporary, file)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise ModelError(
            f"{file}: cannot be written: {error}; free space on this disk, or set stream-folder"
        ) from error
    places = tensor_locations(file)
    return {name: places[name] for name in tensors}


def allocate(size: int, device: torch.device, pinned: bool = False) -> Tensor:
    """Memory for blocks, uint8 [size].

    Raises:
        ModelError: if there is not enough.
    """
    try:
        return torch.empty(size, dtype=torch.uint8, device=device, pin_memory=pinned)
    except (RuntimeError, MemoryError) as error:
        raise ModelError(
            f"{size / 2**20:,.0f} MiB for a block do not fit the memory of {device}: "
            f"{str(error).splitlines()[0]}; free memory, quantize "
            "(model.quantization = nf4), or stream from disk"
        ) from error


def _converted(
    source: BlockStore,
    block: int,
    packed_block: PackedBlock,
    room: Tensor,
    model: torch.dtype | None,
) -> None:
    """Fill a room with a block of another store, in the types of the bucket."""
    if source.in_memory:
        own = source.room(block, None)
    elif packed_block == source.packed_blocks[block] and model is None:
        source.fetch(block, room)
        return
    else:
        own = allocate(source.packed_blocks[block].bytes, torch.device("cpu"))
        source.fetch(block, own)
    views = packed_block.views(room)
    for name, tensor in source.packed_blocks[block].views(own).items():
        rounds = model is not None and tensor.is_floating_point()
        views[name].copy_(tensor.to(model) if rounds else tensor)


def _bytes_of(room: Tensor) -> memoryview:
    numbers: Any = room.numpy()
    return memoryview(numbers)


def _write(file: Path, first: int, piece: memoryview) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY)
        try:
            done = 0
            while done < len(piece):
                done += os.pwritev(descriptor, [piece[done:]], first + done)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ModelError(
            f"{file}: cannot be written: {error.strerror}; free space on this disk"
        ) from error
