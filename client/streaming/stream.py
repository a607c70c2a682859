"""A stream, which loads each block of a model when the block is called (ZO2, sections 5.2, 5.3).

While one block computes, the next block is read into a second buffer. If blocks are changed, the
previous block is written back from a third buffer. The order of the previous pass predicts the next
block. Only the buffers, the embeddings and the head are in memory. A block loads its tensors before
its forward pass, so the model's code does not change.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samara.client.streaming.block_store import BlockStore, allocate
from samara.client.streaming.block_transfer import block_transfer_for
from samara.client.streaming.packed_block import PackedBlock
from samara.client.streaming.swappable_tensors import swappable_tensors
from samara.shared.errors import ModelError
from samara.shared.model.loading import BaseModel

log = logging.getLogger("samara.stream")

_PASSES_BEFORE_WARNING = 3
_SLOW_SHARE = 0.5
"""Share of the time spent waiting for blocks from which on the disk is reported as slow."""


@dataclass(frozen=True)
class Scheduling:
    """The optimizations in the ablation of ZO2's table 4; only measurements turn them off.

    Attributes:
        overlap: whether to load the next block while the present block computes.
        reuse: whether to allocate buffers once instead of for every block.
    """

    overlap: bool = True
    reuse: bool = True


DEFAULT_SCHEDULING = Scheduling()


@dataclass
class TransferStatistics:
    """Counts and times of a stream's transfers so far.

    Attributes:
        blocks: number of blocks loaded.
        bytes: number of bytes loaded.
        reading_seconds: time spent loading, mostly in parallel with computation.
        waiting_seconds: time that computation spent waiting for blocks.
    """

    blocks: int = 0
    bytes: int = 0
    reading_seconds: float = 0.0
    waiting_seconds: float = 0.0


class _BlockBuffer:
    """Memory for one block, on the host and on the device.

    Attributes:
        staging: host memory for reading a block from a file, or None.
        device: memory on the torch device, or None if the device computes in host memory.
        compute: memory for tensors whose computing dtype differs from their stored dtype.
        event: event at the end of the last computation with this buffer. After an allocation,
            event at the end of all earlier work.
        write: latest job that writes a block back from this buffer.
    """

    def __init__(self) -> None:
        self.staging: Tensor | None = None
        self.device: Tensor | None = None
        self.compute: Tensor | None = None
        self.event: Any = None
        self.write: Future[None] | None = None


@dataclass
class _PendingBlock:
    """A block being loaded into a buffer; the future's result is its bytes on the device."""

    buffer: _BlockBuffer
    device_bytes: "Future[Tensor]"


class BlockStream:
    """A stream of a model's blocks through a few buffers, for one computing thread.

    Attributes:
        statistics: counts and times of all transfers so far.

    Args:
        base: model with placeholders on the meta device in its blocks.
        store: store of the blocks.
        dtype: computing dtype of floating-point tensors; None keeps each tensor's dtype in the
            model.
        writable: whether blocks may change; changed blocks are written back.
        scheduling: optimizations, for measurements.
        on_load: function called with the index of each loaded block before it computes.

    Raises:
        ModelError: if store and model do not match, or the buffers do not fit in memory.
    """

    def __init__(
        self,
        base: BaseModel,
        store: BlockStore,
        dtype: torch.dtype | None = None,
        writable: bool = False,
        scheduling: Scheduling = DEFAULT_SCHEDULING,
        on_load: Callable[[int], None] = lambda index: None,
    ) -> None:
        self._on_load = on_load
        self.statistics = TransferStatistics()
        self._store, self._writable, self._scheduling = store, writable, scheduling
        self._blocks = base.blocks
        self._transfer = block_transfer_for(torch.device(base.network.device))
        self._swappable = [swappable_tensors(block) for block in base.blocks]
        self._check(str(base.folder))
        self._compute_layouts = [
            PackedBlock.lay_out(
                (
                    tensor.name,
                    dtype if dtype and tensor.dtype.is_floating_point else model_dtype,
                    tensor.shape,
                    tensor.misalignment,
                )
                for tensor, model_dtype in zip(
                    packed_block.tensors, self._model_dtypes(index), strict=True
                )
            )
            for index, packed_block in enumerate(store.packed_blocks)
        ]
        self._free: list[_BlockBuffer] = []
        self._unallocated = self._buffer_count = 3 if writable else 2
        self._pending: OrderedDict[int, _PendingBlock] = OrderedDict()
        self._successors: dict[int, int] = {}
        self._previous = -1
        self._first_load: float | None = None
        self._warned = False
        self._writes: dict[int, Future[None]] = {}
        self._current: int | None = None
        self._buffer: _BlockBuffer | None = None
        self._device_bytes: Tensor | None = None
        self._tensors: dict[str, Tensor] = {}
        self._changed = False
        self._reader = ThreadPoolExecutor(1, "block-ahead")
        self._writer = ThreadPoolExecutor(1, "block-back")
        self._attach()

    @property
    def block_count(self) -> int:
        """Number of blocks."""
        return len(self._swappable)

    def load_block(self, index: int) -> dict[str, Tensor]:
        """Load a block, and return its tensors on the device by name.

        The tensors are valid until the next block is loaded.

        Raises:
            ModelError: if the block cannot be read, or an earlier block could not be written.
        """
        if index != self._current:
            begun = time.monotonic()
            self.unload_block()
            pending = self._pending.pop(index, None) or self._start_loading(index)
            self._buffer = pending.buffer
            try:
                self._device_bytes = pending.device_bytes.result()
            except BaseException:
                self._free.append(pending.buffer)
                self._buffer = None
                raise
            self._successors[self._previous] = self._current = self._previous = index
            self._tensors = self._compute_tensors(index)
            self.statistics.waiting_seconds += time.monotonic() - begun
            self._warn_if_slow()
            self._load_successor(index)
            self._on_load(index)
            self.set_tensors(self._tensors)
        return self._tensors

    def set_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Make the loaded block compute with these tensors, converted to the model's dtypes."""
        assert self._current is not None
        for name, swappable in self._swappable[self._current].items():
            swappable.swap_in(tensors[name])

    def mark_changed(self) -> None:
        """Mark the loaded block as changed, so that it is written back."""
        assert self._writable, "this stream is read-only"
        self._changed = True

    def unload_block(self) -> None:
        """Put placeholders back into the loaded block, and start writing it if it has changed."""
        if self._current is None:
            return
        assert self._buffer is not None
        assert self._device_bytes is not None
        index, buffer, device_bytes = self._current, self._buffer, self._device_bytes
        for swappable in self._swappable[index].values():
            swappable.swap_out()
        if self._changed:
            self._round_to_stored_types(index, device_bytes)
        buffer.event = self._transfer.record_event()
        if self._changed:
            job = self._writer.submit(self._write_back, index, buffer, device_bytes)
            buffer.write = self._writes[index] = job
            if not self._scheduling.overlap:
                job.result()
        self._free.append(buffer)
        self._current = self._buffer = self._device_bytes = None
        self._tensors, self._changed = {}, False

    def finish_writes(self) -> None:
        """Wait until every changed block is in the store.

        Raises:
            ModelError: if a block could not be written.
        """
        self.unload_block()
        for job in self._writes.values():
            job.result()
        self._writes.clear()

    def _warn_if_slow(self) -> None:
        """Log a warning once if steps mostly wait for the disk."""
        passes = self.statistics.blocks / self.block_count
        if self._first_load is None:
            self._first_load = time.monotonic()
        elif passes >= _PASSES_BEFORE_WARNING and not self._warned:
            self._warned = True
            if warning := self.slow_disk_warning(time.monotonic() - self._first_load):
                log.warning("%s", warning)

    def free_buffers(self) -> None:
        """Free the buffers, which are allocated again when a block is loaded."""
        self.finish_writes()
        for pending in self._pending.values():
            pending.device_bytes.exception()
        self._pending.clear()
        self._free.clear()
        self._unallocated = self._buffer_count

    def slow_disk_warning(self, seconds: float) -> str:
        """Return a warning if the disk was too slow during some seconds of work, else ""."""
        statistics = self.statistics
        if self._store.in_memory or statistics.waiting_seconds < _SLOW_SHARE * seconds:
            return ""
        rate = statistics.bytes / max(statistics.reading_seconds, 1e-9)
        return (
            f"the disk reads {rate / 1e6:,.0f} MB/s, and the model waited "
            f"{statistics.waiting_seconds:.1f} of {seconds:.1f} s for its blocks; quantize "
            "(model.quantization = nf4 reads a seventh of the bytes of float32), score more rows "
            "in a step, or use a faster disk"
        )

    def _load_successor(self, index: int) -> None:
        """Start loading the block that followed this one in the previous pass."""
        successor = self._successors.get(index, (index + 1) % self.block_count)
        if self._scheduling.overlap and successor != index and successor not in self._pending:
            self._pending[successor] = self._start_loading(successor)

    def _start_loading(self, index: int) -> _PendingBlock:
        """Start loading a block into a free buffer.

        Without a free buffer, the buffer of an unused block that was loaded ahead is taken.
        """
        if not self._free and self._unallocated:
            buffer = _BlockBuffer()
            self._allocate(buffer)
            self._free.append(buffer)
            self._unallocated -= 1
        if not self._free:
            _, unused = self._pending.popitem(last=False)
            unused.device_bytes.exception()
            self._free.append(unused.buffer)
        buffer = self._free.pop(0)
        job = self._reader.submit(self._fetch, index, buffer)
        if not self._scheduling.overlap:
            job.exception()
        return _PendingBlock(buffer, job)

    def _fetch(self, index: int, buffer: _BlockBuffer) -> Tensor:
        """Load a block and return its bytes on the device; runs in the reading thread."""
        for job in (buffer.write, self._writes.get(index)):
            if job is not None:
                job.result()
        begun = time.monotonic()
        if not self._scheduling.reuse:
            self._allocate(buffer)
        host_buffer = self._store.host_buffer(index, buffer.staging)
        self._store.fetch(index, host_buffer)
        device_bytes = self._transfer.upload(host_buffer, buffer.device, buffer.event)
        self.statistics.reading_seconds += time.monotonic() - begun
        self.statistics.blocks += 1
        self.statistics.bytes += len(host_buffer)
        return device_bytes

    def _write_back(self, index: int, buffer: _BlockBuffer, device_bytes: Tensor) -> None:
        """Write a block back to the store; runs in the writing thread."""
        host_buffer = self._store.host_buffer(index, buffer.staging)
        self._transfer.offload(device_bytes, host_buffer, buffer.event)
        self._store.write_back(index, host_buffer)

    def _compute_tensors(self, index: int) -> dict[str, Tensor]:
        """Return the loaded block's tensors in their computing dtypes, by name."""
        assert self._buffer is not None
        assert self._device_bytes is not None
        stored, computed = self._store.packed_blocks[index], self._compute_layouts[index]
        views = stored.views(self._device_bytes)
        if self._buffer.compute is None:
            return views
        converted = computed.views(self._buffer.compute)
        for before, after in zip(stored.tensors, computed.tensors, strict=True):
            if before.dtype == after.dtype:
                converted[after.name] = views[before.name]
            else:
                converted[after.name].copy_(views[before.name])
        return converted

    def _round_to_stored_types(self, index: int, device_bytes: Tensor) -> None:
        """Round the loaded block's tensors to the dtypes in which they are stored."""
        for name, view in self._store.packed_blocks[index].views(device_bytes).items():
            if self._tensors[name].data_ptr() != view.data_ptr():
                view.copy_(self._tensors[name])

    def _allocate(self, buffer: _BlockBuffer) -> None:
        store, transfer = self._store, self._transfer
        if not store.in_memory:
            buffer.staging = allocate(store.largest, torch.device("cpu"), transfer.pinned)
        if transfer.device.type != "cpu":
            buffer.device = allocate(store.largest, transfer.device)
        converts = any(
            before.dtype != after.dtype
            for stored, computed in zip(store.packed_blocks, self._compute_layouts, strict=True)
            for before, after in zip(stored.tensors, computed.tensors, strict=True)
        )
        if converts:
            largest = max(layout.bytes for layout in self._compute_layouts)
            buffer.compute = allocate(largest, transfer.device)
        # An upload must wait for earlier work that still uses the newly allocated memory.
        buffer.event = transfer.record_event()

    def _model_dtypes(self, index: int) -> list[torch.dtype]:
        swappable = self._swappable[index]
        return [
            swappable[tensor.name].placeholder.dtype
            for tensor in self._store.packed_blocks[index].tensors
        ]

    def _check(self, folder: str) -> None:
        """Raise a `ModelError` unless store and model have the same tensors."""
        if len(self._swappable) != len(self._store.packed_blocks):
            raise ModelError(
                f"{folder}: the model has {len(self._swappable)} blocks, but the store has "
                f"{len(self._store.packed_blocks)}; config.json and weights belong to different "
                "models"
            )
        for index, swappable in enumerate(self._swappable):
            stored = {tensor.name: tensor for tensor in self._store.packed_blocks[index].tensors}
            for name in swappable.keys() ^ stored.keys():
                raise ModelError(
                    f"{folder}: block {index}: {name} is only in the model or only in the store; "
                    "config.json and weights belong to different models"
                )
            for name, tensor in stored.items():
                placeholder = swappable[name].placeholder
                if tensor.shape != tuple(placeholder.shape):
                    raise ModelError(
                        f"{folder}: block {index}: {name} has the stored shape "
                        f"{list(tensor.shape)}, but config.json requires "
                        f"{list(placeholder.shape)}; config.json and weights belong to different "
                        "models"
                    )
                if tensor.dtype.is_floating_point != placeholder.dtype.is_floating_point:
                    raise ModelError(
                        f"{folder}: block {index}: {name} is stored as {tensor.dtype}, but the "
                        f"model computes with {placeholder.dtype}; get the model again"
                    )

    def detach(self) -> None:
        """Remove the stream from the model, so that another stream can be attached."""
        self.free_buffers()
        for block in self._blocks:
            del block.forward

    def _attach(self) -> None:
        """Make each block load its tensors before its forward pass."""
        for index, block in enumerate(self._blocks):
            block.forward = self._load_first(index, block.forward)

    def _load_first(self, index: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.load_block(index)
            return forward(*args, **kwargs)

        return run
