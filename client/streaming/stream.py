"""Blocks that come when they are called and go when the next one is (ZO2, sections 5.2 and 5.3).

While one block is computed with, the next is read into a second buffer, and where blocks are
changed the one before is brought back from a third. Which is next is what followed last time. So
only the buffers, embeddings and head are in memory, and whoever calls a block of the model finds it
there: no model file is changed.
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

from client.streaming.block_store import BlockStore, allocate
from client.streaming.block_transfer import BlockTransfer, block_transfer_for
from client.streaming.packed_block import PackedBlock
from client.streaming.slots import swappable_tensors
from shared.errors import ModelError
from shared.model.loading import BaseModel

log = logging.getLogger("samara.stream")

_PASSES_BEFORE_A_WORD = 3
_SLOW_SHARE = 0.5
"""Of a pass spent waiting for blocks, beyond which the disk is worth a word."""


@dataclass(frozen=True)
class Scheduling:
    """What ZO2 takes away one by one in its table 4; both are on but for measurements.

    Attributes:
        overlap: the next block comes while one is computed with.
        reuse: buffers are made once, not for every block.
    """

    overlap: bool = True
    reuse: bool = True


DEFAULT_SCHEDULING = Scheduling()


@dataclass
class TransferStatistics:
    """What has passed so far.

    Attributes:
        blocks: that were brought.
        bytes: that were brought.
        reading_seconds: that bringing took, most of it beside the computation.
        waiting_seconds: that the computation waited for blocks.
    """

    blocks: int = 0
    bytes: int = 0
    reading_seconds: float = 0.0
    waiting_seconds: float = 0.0


class _BlockBuffer:
    """A place for one block."""

    def __init__(self, stage: Tensor | None, on_device: Tensor | None, wide: Tensor | None) -> None:
        self.stage, self.on_device, self.wide = stage, on_device, wide
        self.computed: Any = None
        self.leaving: Future[None] | None = None


@dataclass
class _PendingBlock:
    """A block on its way."""

    buffer: _BlockBuffer
    bytes_there: "Future[Tensor]"


class BlockStream:
    """The blocks of a model in a few buffers.

    One thread computes with it.

    Attributes:
        statistics: what has passed.

    Args:
        base: its blocks' tensors are placeholders on the meta device.
        store: where the blocks wait.
        dtype: that floats are computed with; None is each tensor's own in the model.
        changes: whether blocks may be changed, and are then brought back.
        scheduling: for measurements.
        on_load: called with a block that has come, before anything is computed with it.

    Raises:
        ModelError: if store and model do not fit, or the buffers do not fit the memory.
    """

    def __init__(
        self,
        base: BaseModel,
        store: BlockStore,
        dtype: torch.dtype | None = None,
        changes: bool = False,
        scheduling: Scheduling = DEFAULT_SCHEDULING,
        on_load: Callable[[int], None] = lambda index: None,
    ) -> None:
        self._on_arrival = on_load
        self.statistics = TransferStatistics()
        self._store, self._changes, self._scheduling = store, changes, scheduling
        self._blocks = base.blocks
        self._carrier: BlockTransfer = block_transfer_for(torch.device(base.network.device))
        self._slots = [swappable_tensors(block) for block in base.blocks]
        self._check(str(base.folder))
        self._packed_blocks = [
            PackedBlock.lay_out(
                (
                    part.name,
                    dtype if dtype and part.dtype.is_floating_point else empty.dtype,
                    part.shape,
                    part.phase,
                )
                for part, empty in zip(packed_block.parts, self._placeholders(index), strict=True)
            )
            for index, packed_block in enumerate(store.packed_blocks)
        ]
        self._free: list[_BlockBuffer] = []
        self._unmade = self._most = 3 if changes else 2
        self._coming: OrderedDict[int, _PendingBlock] = OrderedDict()
        self._after: dict[int, int] = {}
        self._latest = -1
        self._begun: float | None = None
        self._said = False
        self._writing: dict[int, Future[None]] = {}
        self._at: int | None = None
        self._buffer: _BlockBuffer | None = None
        self._bytes_there: Tensor | None = None
        self._here: dict[str, Tensor] = {}
        self._changed = False
        self._reader = ThreadPoolExecutor(1, "block-ahead")
        self._writer = ThreadPoolExecutor(1, "block-back")
        self._attach()

    @property
    def block_count(self) -> int:
        """Number of blocks."""
        return len(self._slots)

    def load_block(self, index: int) -> dict[str, Tensor]:
        """A block's tensors on the device, by their names in it; valid until the next is called.

        Raises:
            ModelError: if it cannot be read, or an earlier one could not be written.
        """
        if index != self._at:
            begun = time.monotonic()
            self.unload_block()
            coming = self._coming.pop(index, None) or self._called(index)
            self._buffer = coming.buffer
            try:
                self._bytes_there = coming.bytes_there.result()
            except BaseException:
                self._free.append(coming.buffer)
                self._buffer = None
                raise
            self._after[self._latest], self._at, self._latest = index, index, index
            self._here = self._widened(index)
            self.statistics.waiting_seconds += time.monotonic() - begun
            self._watch()
            self._call_next(index)
            self._on_arrival(index)
            self.set_tensors(self._here)
        return self._here

    def set_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Have the model's present block compute with these tensors, in the model's own types."""
        assert self._at is not None
        for name, slot in self._slots[self._at].items():
            slot.put(tensors[name])

    def mark_changed(self) -> None:
        """The present block was changed and goes back when the next is called."""
        assert self._changes, "this stream's blocks are only read"
        self._changed = True

    def unload_block(self) -> None:
        """Let the present block go."""
        if self._at is None:
            return
        assert self._buffer is not None
        assert self._bytes_there is not None
        index, buffer, there = self._at, self._buffer, self._bytes_there
        for slot in self._slots[index].values():
            slot.clear()
        if self._changed:
            self._narrow(index, there)
        buffer.computed = self._carrier.mark()
        if self._changed:
            job = self._writer.submit(self._back, index, buffer, there)
            buffer.leaving = self._writing[index] = job
            if not self._scheduling.overlap:
                job.result()
        self._free.append(buffer)
        self._at = self._buffer = self._bytes_there = None
        self._here, self._changed = {}, False

    def finish_writes(self) -> None:
        """Return when every changed block is back in the store.

        Raises:
            ModelError: if one could not be written.
        """
        self.unload_block()
        for job in self._writing.values():
            job.result()
        self._writing.clear()

    def _watch(self) -> None:
        """Say once if the disk is what a step waits for."""
        passes = self.statistics.blocks / self.block_count
        if self._begun is None:
            self._begun = time.monotonic()
        elif passes >= _PASSES_BEFORE_A_WORD and not self._said:
            self._said = True
            if said := self.slow_disk_warning(time.monotonic() - self._begun):
                log.warning("%s", said)

    def free_buffers(self) -> None:
        """Give the buffers' memory back; they are made again when a block is called."""
        self.finish_writes()
        for coming in self._coming.values():
            coming.bytes_there.exception()
        self._coming.clear()
        self._free.clear()
        self._unmade = self._most

    def slow_disk_warning(self, seconds: float) -> str:
        """What there is to say about the disk after so many seconds of work; empty if nothing."""
        statistics = self.statistics
        if self._store.in_memory or statistics.waiting_seconds < _SLOW_SHARE * seconds:
            return ""
        rate = statistics.bytes / max(statistics.reading_seconds, 1e-9)
        return (
            f"the disk gives {rate / 1e6:,.0f} MB/s of blocks, and "
            f"{statistics.waiting_seconds:.1f} of {seconds:.1f} s were spent waiting for them; "
            "quantize (model.quantization = nf4 reads an eighth of float32), score more rows in a "
            "step, or use a faster disk"
        )

    def _call_next(self, index: int) -> None:
        """Have the block that will be needed after this one come."""
        guess = self._after.get(index, (index + 1) % self.block_count)
        if self._scheduling.overlap and guess != index and guess not in self._coming:
            self._coming[guess] = self._called(guess)

    def _called(self, index: int) -> _PendingBlock:
        """A block on its way into a free buffer; one that came in vain gives up its own."""
        if not self._free and self._unmade:
            self._free.append(self._new_buffer())
            self._unmade -= 1
        if not self._free:
            _, vain = self._coming.popitem(last=False)
            vain.bytes_there.exception()
            self._free.append(vain.buffer)
        buffer = self._free.pop(0)
        job = self._reader.submit(self._fetched, index, buffer)
        if not self._scheduling.overlap:
            job.exception()
        return _PendingBlock(buffer, job)

    def _fetched(self, index: int, buffer: _BlockBuffer) -> Tensor:
        """Bring a block; in the reading thread."""
        for job in (buffer.leaving, self._writing.get(index)):
            if job is not None:
                job.result()
        begun = time.monotonic()
        if not self._scheduling.reuse:
            self._renew(buffer)
        room = self._store.room(index, buffer.stage)
        self._store.fetch(index, room)
        there = self._carrier.up(room, buffer.on_device, buffer.computed)
        self.statistics.reading_seconds += time.monotonic() - begun
        self.statistics.blocks += 1
        self.statistics.bytes += len(room)
        return there

    def _back(self, index: int, buffer: _BlockBuffer, there: Tensor) -> None:
        """Bring a block back; in the writing thread."""
        room = self._store.room(index, buffer.stage)
        self._carrier.down(there, room, buffer.computed)
        self._store.keep(index, room)

    def _widened(self, index: int) -> dict[str, Tensor]:
        """The block's tensors in the types that they are computed with."""
        assert self._buffer is not None
        assert self._bytes_there is not None
        stored, wanted = self._store.packed_blocks[index], self._packed_blocks[index]
        views = stored.views(self._bytes_there)
        if self._buffer.wide is None:
            return views
        wide = wanted.views(self._buffer.wide)
        same = {
            part.name
            for part, own in zip(stored.parts, wanted.parts, strict=True)
            if part.dtype == own.dtype
        }
        for name in wide.keys() - same:
            wide[name].copy_(views[name])
        return wide | {name: views[name] for name in same}

    def _narrow(self, index: int, there: Tensor) -> None:
        """Round what was changed to the types that travel."""
        for name, view in self._store.packed_blocks[index].views(there).items():
            if self._here[name].data_ptr() != view.data_ptr():
                view.copy_(self._here[name])

    def _new_buffer(self) -> _BlockBuffer:
        buffer = _BlockBuffer(None, None, None)
        self._renew(buffer)
        return buffer

    def _renew(self, buffer: _BlockBuffer) -> None:
        store, carrier = self._store, self._carrier
        if not store.in_memory:
            buffer.stage = allocate(store.largest, torch.device("cpu"), carrier.pinned)
        if carrier.device.type != "cpu":
            buffer.on_device = allocate(store.largest, carrier.device)
        converts = any(
            [part.dtype for part in stored.parts] != [part.dtype for part in wanted.parts]
            for stored, wanted in zip(store.packed_blocks, self._packed_blocks, strict=True)
        )
        if converts:
            largest = max(packed_block.bytes for packed_block in self._packed_blocks)
            buffer.wide = allocate(largest, carrier.device)

    def _placeholders(self, index: int) -> list[Tensor]:
        return [
            self._slots[index][part.name].empty for part in self._store.packed_blocks[index].parts
        ]

    def _check(self, folder: str) -> None:
        """Store and model have the same tensors."""
        if len(self._slots) != len(self._store.packed_blocks):
            raise ModelError(
                f"{folder}: has {len(self._slots)} blocks, and {len(self._store.packed_blocks)} "
                "are stored"
            )
        for index, slots in enumerate(self._slots):
            stored = {part.name: part for part in self._store.packed_blocks[index].parts}
            for name in slots.keys() ^ stored.keys():
                raise ModelError(f"{folder}: block {index}: {name} is not in both model and store")
            for name, slot in slots.items():
                part = stored[name]
                if part.shape != tuple(slot.empty.shape):
                    raise ModelError(
                        f"{folder}: block {index}: {name} is stored as {list(part.shape)} and the "
                        f"model's configuration says {list(slot.empty.shape)}; config.json and "
                        "weights belong to different models"
                    )
                if part.dtype.is_floating_point != slot.empty.dtype.is_floating_point:
                    raise ModelError(
                        f"{folder}: block {index}: {name} is stored as {part.dtype}, which cannot "
                        f"be computed with as {slot.empty.dtype}; get the model again"
                    )

    def detach(self) -> None:
        """Let the model go; its blocks are placeholders again, for another stream."""
        self.free_buffers()
        for block in self._blocks:
            del block.forward

    def _attach(self) -> None:
        """Have each block come when it is called."""
        for index, block in enumerate(self._blocks):
            block.forward = self._coming_first(index, block.forward)

    def _coming_first(self, index: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.load_block(index)
            return forward(*args, **kwargs)

        return run
