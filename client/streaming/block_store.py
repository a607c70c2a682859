"""Stores of a model's blocks: files on disk, or the host's memory.

A store provides a host buffer for each block, fills it with the block, and writes a changed block
back. A checkpoint's files are read-only; training changes a copy of these files.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samara.client.streaming.packed_block import PackedBlock
from samara.client.streaming.reading import PIECE_BYTES, READERS, ReadRange, read
from samara.client.streaming.tensor_locations import TensorLocation, tensor_locations
from samara.shared.errors import ModelError


class BlockStore(ABC):
    """A store of the blocks of a model.

    Attributes:
        packed_blocks: layout of each block in memory.
    """

    packed_blocks: Sequence[PackedBlock]

    @property
    def largest(self) -> int:
        """Size of the largest block, in bytes."""
        return max(packed_block.bytes for packed_block in self.packed_blocks)

    @property
    def bytes(self) -> int:
        """Total size of all blocks, in bytes."""
        return sum(packed_block.bytes for packed_block in self.packed_blocks)

    @property
    @abstractmethod
    def in_memory(self) -> bool:
        """True if the store keeps the blocks in host memory rather than in files."""

    @abstractmethod
    def host_buffer(self, block: int, staging_buffer: Tensor | None) -> Tensor:
        """Return the host buffer for a block, uint8 [bytes of the block].

        Args:
            block: index of the block.
            staging_buffer: uint8 [largest], for blocks that are read from files. A store in memory
                ignores it.
        """

    @abstractmethod
    def fetch(self, block: int, host_buffer: Tensor) -> None:
        """Read a block into its host buffer.

        Args:
            block: index of the block.
            host_buffer: buffer that the method `host_buffer` returned for this block.

        Raises:
            ModelError: if a file is missing, truncated, or cannot be read.
        """

    @abstractmethod
    def write_back(self, block: int, host_buffer: Tensor) -> None:
        """Write a changed block from its host buffer to the store.

        Raises:
            ModelError: if the block cannot be written.
        """


class FileStore(BlockStore):
    """A store of blocks in safetensors files.

    Args:
        locations: for each block, the location of each of its tensors by its name in the block.
        packed_blocks: layout of each block in memory, with the same tensors and dtypes.
        writable: whether `write_back` may write into the files.
        read: function that reads a byte range of a file.
    """

    def __init__(
        self,
        locations: Sequence[Mapping[str, TensorLocation]],
        packed_blocks: Sequence[PackedBlock],
        writable: bool = False,
        read: ReadRange = read,
    ) -> None:
        self.packed_blocks = packed_blocks
        self._locations, self._writable, self._read = locations, writable, read
        self._readers = ThreadPoolExecutor(READERS, "block-reader")

    @property
    def in_memory(self) -> bool:
        """False, because blocks are read from files."""
        return False

    def host_buffer(self, block: int, staging_buffer: Tensor | None) -> Tensor:
        """Return the part of the staging buffer that the block occupies."""
        assert staging_buffer is not None, "blocks in files pass through a staging buffer"
        return staging_buffer[: self.packed_blocks[block].bytes]

    def fetch(self, block: int, host_buffer: Tensor) -> None:
        """Read the pieces of a block from disk in parallel."""
        memory = _bytes_of(host_buffer)
        jobs: list[Future[None]] = []
        for tensor in self.packed_blocks[block].tensors:
            location = self._locations[block][tensor.name]
            for start in range(0, tensor.bytes, PIECE_BYTES):
                size = min(PIECE_BYTES, tensor.bytes - start)
                piece = memory[tensor.offset + start : tensor.offset + start + size]
                jobs.append(
                    self._readers.submit(self._read, location.file, location.offset + start, piece)
                )
        for job in jobs:
            job.exception()  # all jobs must release the buffer, even if one fails
        for job in jobs:
            job.result()

    def write_back(self, block: int, host_buffer: Tensor) -> None:
        """Write a block's tensors into their files."""
        assert self._writable, "the files of a checkpoint are never written"
        memory = _bytes_of(host_buffer)
        for tensor in self.packed_blocks[block].tensors:
            location = self._locations[block][tensor.name]
            piece = memory[tensor.offset : tensor.offset + tensor.bytes]
            _write(location.file, location.offset, piece)


class HostStore(BlockStore):
    """A store of blocks in host memory, optionally page-locked.

    Args:
        source: store from which the blocks are copied.
        dtype: type for storing floating-point tensors; None keeps the source's types.
        pinned: whether to page-lock the memory.
        model_dtype: type of the model. Floating-point tensors are rounded to it before conversion
            to `dtype`. With None they are not rounded.

    Raises:
        ModelError: if there is not enough memory, or the source cannot be read.
    """

    def __init__(
        self,
        source: BlockStore,
        dtype: torch.dtype | None = None,
        pinned: bool = False,
        model_dtype: torch.dtype | None = None,
    ) -> None:
        self.packed_blocks = [block.with_dtype(dtype) for block in source.packed_blocks]
        self._memory = []
        for block, packed_block in enumerate(self.packed_blocks):
            memory = allocate(packed_block.bytes, torch.device("cpu"), pinned)
            _copy_block(source, block, packed_block, memory, model_dtype)
            self._memory.append(memory)

    @property
    def in_memory(self) -> bool:
        """True, because blocks are in host memory."""
        return True

    def host_buffer(self, block: int, staging_buffer: Tensor | None) -> Tensor:
        """Return the memory that holds the block."""
        return self._memory[block]

    def fetch(self, block: int, host_buffer: Tensor) -> None:
        """Do nothing, because the host buffer is the stored block."""

    def write_back(self, block: int, host_buffer: Tensor) -> None:
        """Do nothing, because the host buffer is the stored block."""


def copy_to_files(
    source: BlockStore,
    folder: Path,
    dtype: torch.dtype | None,
    model_dtype: torch.dtype | None = None,
) -> FileStore:
    """Copy all blocks to new files, and return a writable store of them.

    Args:
        source: store from which the blocks are copied.
        folder: folder for one file per block; files of an earlier copy are replaced.
        dtype: type for storing floating-point tensors; None keeps the source's types.
        model_dtype: type of the model. Floating-point tensors are rounded to it before conversion
            to `dtype`. With None they are not rounded.

    Raises:
        ModelError: if the source cannot be read or the folder cannot be written.
    """
    packed_blocks = [block.with_dtype(dtype) for block in source.packed_blocks]
    locations = []
    for block, packed_block in enumerate(packed_blocks):
        memory = allocate(packed_block.bytes, torch.device("cpu"))
        _copy_block(source, block, packed_block, memory, model_dtype)
        locations.append(write_block_file(folder, block, packed_block.views(memory)))
    return FileStore(locations, packed_blocks, writable=True)


def write_block_file(
    folder: Path, block: int, tensors: Mapping[str, Tensor]
) -> dict[str, TensorLocation]:
    """Write a block's file atomically, and return the locations of its tensors.

    Raises:
        ModelError: if the block cannot be written.
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
            f"{file}: cannot be written: {error}; free space on this disk, or set "
            "XDG_CACHE_HOME to a folder on another disk"
        ) from error
    locations = tensor_locations(file)
    return {name: locations[name] for name in tensors}


def allocate(size: int, device: torch.device, pinned: bool = False) -> Tensor:
    """Allocate memory for blocks, uint8 [size], writable both in and outside of inference mode.

    Raises:
        ModelError: if there is not enough memory.
    """
    try:
        with torch.inference_mode(False):
            return torch.empty(size, dtype=torch.uint8, device=device, pin_memory=pinned)
    except (RuntimeError, MemoryError) as error:
        raise ModelError(
            f"a block of {size / 2**20:,.0f} MiB does not fit into the memory of {device}: "
            f"{str(error).splitlines()[0]}; free memory, quantize "
            "(model.quantization = nf4), or stream from disk"
        ) from error


def _copy_block(
    source: BlockStore,
    block: int,
    packed_block: PackedBlock,
    memory: Tensor,
    model_dtype: torch.dtype | None,
) -> None:
    """Copy a block of another store into memory, in the dtypes of a packed block."""
    if source.in_memory:
        source_memory = source.host_buffer(block, None)
    elif packed_block == source.packed_blocks[block] and model_dtype is None:
        source.fetch(block, memory)
        return
    else:
        source_memory = allocate(source.packed_blocks[block].bytes, torch.device("cpu"))
        source.fetch(block, source_memory)
    views = packed_block.views(memory)
    for name, tensor in source.packed_blocks[block].views(source_memory).items():
        rounds = model_dtype is not None and tensor.is_floating_point()
        views[name].copy_(tensor.to(model_dtype) if rounds else tensor)


def _bytes_of(memory: Tensor) -> memoryview:
    numbers: Any = memory.numpy()
    return memoryview(numbers)


def _write(file: Path, offset: int, piece: memoryview) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY)
        try:
            done = 0
            while done < len(piece):
                done += os.pwritev(descriptor, [piece[done:]], offset + done)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ModelError(
            f"{file}: cannot be written: {error.strerror}; free space on this disk"
        ) from error
