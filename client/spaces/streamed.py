"""The space of all parameters of a streamed model (ZO2, Wang et al. 2025, algorithms 2 and 3).

Every block is transferred once per step. A loaded block receives the last step's update, computes
with θ + ε·z and θ − ε·z of every direction, and is written back (section 5.4). The paper passes the
state of a random generator from block to block (section 5.1). Here a direction's elements are a
function of seed and index, so no such state is needed. The arithmetic is that of `FullSpace`,
element by element, so θ has the same bits as in `FullSpace`.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samara.client.spaces.full import check_trainable
from samara.client.spaces.space import (
    NO_SEEDS,
    RangeUpdate,
    ScoreFunction,
    Space,
    SpaceTensor,
)
from samara.client.streaming.block_store import BlockStore, allocate
from samara.client.streaming.stream import DEFAULT_SCHEDULING, BlockStream, Scheduling
from samara.shared.model.loading import BaseModel
from samara.shared.model.lora_fa import empty_adapter
from samara.shared.protocol.directions import BOTH_SIDES, WHOLE_BLOCKS, Distribution
from samara.shared.protocol.replay import Backend


class StreamedFullSpace(Space):
    """The space of all parameters of a network whose blocks are kept in a writable store.

    Parameters outside the blocks stay in memory and are called resident.

    Attributes:
        stream: stream that loads and writes back the blocks.

    Args:
        base: model with placeholders in its blocks and no stream attached.
        store: store of the initial blocks; from now on it contains the θ of the blocks.
        backend: replay backend that computes directions.
        keep_copy: whether to keep θ in float32 in addition to the perturbed weights, as in
            `FullSpace`. Otherwise θ itself is perturbed and restored.
        deferred: whether to apply a step's update to a block when it is next loaded, instead of to
            all blocks at once.
        distribution: distribution of the directions.
        scheduling: schedule of the stream's transfers, for measurements.

    Raises:
        ModelError: if the weights are quantized, the model is too large for a direction, or memory
            is too small.
    """

    kind = "full"

    def __init__(
        self,
        base: BaseModel,
        store: BlockStore,
        backend: Backend,
        keep_copy: bool = True,
        deferred: bool = True,
        distribution: Distribution = "gaussian",
        scheduling: Scheduling = DEFAULT_SCHEDULING,
    ) -> None:
        check_trainable(base)
        named = list(base.network.named_parameters())
        tensors = [SpaceTensor(name, tuple(parameter.shape)) for name, parameter in named]
        adapter, self._no_adapters = empty_adapter()
        super().__init__(tensors, adapter, base.network.device, backend, distribution)
        dtype: torch.dtype = base.network.dtype
        stored = {
            part.dtype for packed_block in store.packed_blocks for part in packed_block.tensors
        }
        theta_dtype = torch.float32 if keep_copy else dtype
        if stored != {theta_dtype}:
            self.state = f"{', '.join(sorted(map(_dtype_name, stored)))}, streamed"
        elif not keep_copy:
            self.state = f"{_dtype_name(dtype)}, in place"
        self.drifts = not keep_copy
        self.keeps_copy, self._deferred = keep_copy, deferred
        self._parameters = _list_parameters(base, named, store)
        self._starts = [parameter.first for parameter in self._parameters]
        self._resident = {
            parameter.first: tensor.detach().view(-1)
            for parameter, (_, tensor) in zip(self._parameters, named, strict=True)
            if parameter.block is None
        }
        self._theta = {
            first: tensor.to(torch.float32, copy=True) if keep_copy else tensor
            for first, tensor in self._resident.items()
        }
        self._by_block: dict[int | None, list[_Parameter]] = {}
        for parameter in self._parameters:
            self._by_block.setdefault(parameter.block, []).append(parameter)
        self._seeds, self._offsets = NO_SEEDS, list[float]()
        self._updates: list[RangeUpdate] = []
        self._applied = [0] * len(store.packed_blocks)
        self.stream = BlockStream(base, store, theta_dtype, True, scheduling, self._apply_deferred)
        self._perturbed_blocks = [
            packed_block.with_dtype(dtype) for packed_block in store.packed_blocks
        ]
        self._perturbed_buffer: Tensor | None = None
        if keep_copy:
            largest = max(packed_block.bytes for packed_block in self._perturbed_blocks)
            self._perturbed_buffer = allocate(largest, self._torch_device)

    def values(self, first: int, count: int) -> Tensor:
        """Load the blocks that hold some elements of θ, and return a copy of these elements."""
        # A copy, because the next block is loaded into this block's memory.
        values = torch.empty(count, device=self._torch_device)
        start = 0
        for _, view in self._views(first, count):
            values[start : start + len(view)] = view
            start += len(view)
        return values

    @torch.inference_mode()
    def assign(self, first: int, values: Tensor) -> None:
        """Set elements of θ in loaded blocks, which are written back later.

        With a copy, θ is rounded to the stored type now, and not when the block is written. So
        the bits do not depend on the time of the transfer.
        """
        start = 0
        for parameter, view in self._views(first, len(values), changes=True):
            new = values[start : start + len(view)]
            view.copy_(new.to(parameter.stored_dtype) if self.keeps_copy else new)
            start += len(view)
        for parameter in self.parameters_of(None):
            if self.keeps_copy and parameter.overlaps(first, len(values)):
                self._resident[parameter.first].copy_(self._theta[parameter.first])

    @torch.inference_mode()
    def evaluate(
        self,
        score: ScoreFunction,
        seeds: NDArray[np.uint64] = NO_SEEDS,
        epsilon: float = 0.0,
        signs: tuple[int, ...] = BOTH_SIDES,
    ) -> NDArray[np.float32]:
        """Run a `StreamedForward`, which perturbs the model through this space's `at_stage`."""
        if not len(seeds):
            self.flush()
            return score(self._no_adapters)
        self._seeds, self._offsets = seeds, [sign * epsilon for sign in signs]
        # The adapters are empty, because the model itself is perturbed.
        no_elements = torch.zeros((len(seeds), 0), dtype=torch.int16)
        try:
            return score(replace(self._no_adapters, directions=no_elements, signs=signs))
        finally:
            self._seeds, self._offsets = NO_SEEDS, []

    def direction(self, seed: int, first: int, count: int) -> Tensor:
        """Return elements of a direction, float32 [count]; `first` may be any element."""
        before = first % WHOLE_BLOCKS
        whole: Tensor = super().direction(seed, first - before, before + count)
        return whole[before:]

    def update_all(self, update: RangeUpdate) -> None:
        """Apply an update to resident parameters now, and to each block when it is next loaded."""
        for parameter in self.parameters_of(None):
            self._apply(update, parameter)
        self._updates.append(update)
        if not self._deferred:
            self.flush()

    @torch.inference_mode()
    def flush(self) -> None:
        """Apply all deferred updates and write all blocks back to the store.

        Raises:
            ModelError: if a block cannot be read or written.
        """
        for block, applied in enumerate(self._applied):
            if applied < len(self._updates):
                self.stream.load_block(block)
        self.stream.finish_writes()
        self._updates.clear()
        self._applied = [0] * len(self._applied)

    @contextmanager
    def at_stage(self, stage: int) -> Iterator[Callable[[int], None]]:
        """Prepare one part of the model for perturbations inside the context; finally restore θ.

        Args:
            stage: index of a block. A negative number means the resident parameters before the
                blocks, a number past the last block means the same parameters after the blocks.

        Yields:
            A function that perturbs the part, given a perturbation's index: 0 … q − 1 for the seeds
            with the first sign, q … 2q − 1 with the second.
        """
        block = stage if 0 <= stage < self.stream.block_count else None
        part = _PerturbedPart(self, block)
        # The resident parameters are perturbed at two stages. In place, each perturbation leaves
        # rounding errors, which replay repeats only once.
        restore = block is None and stage < 0 and not self.keeps_copy
        saved = {f: t.clone() for f, t in self._resident.items()} if restore else {}
        try:
            yield lambda index: part.perturb(*self._seed_and_offset(index))
        finally:
            part.restore()
            for first, before in saved.items():
                self._resident[first].copy_(before)

    def _seed_and_offset(self, index: int) -> tuple[int, float]:
        """Return the seed and the offset s·ε of a perturbation; (0, 0.0) if there are no seeds."""
        if not len(self._seeds):
            return 0, 0.0
        sign, query = divmod(index, len(self._seeds))
        return int(self._seeds[query]), self._offsets[sign]

    def theta_of(self, parameter: "_Parameter") -> Tensor:
        """Load the block of one parameter, and return a flat view of the parameter's θ."""
        if parameter.block is None:
            resident: Tensor = self._theta[parameter.first]
            return resident
        loaded: Tensor = self.stream.load_block(parameter.block)[parameter.name].view(-1)
        return loaded

    def parameters_of(self, block: int | None) -> "list[_Parameter]":
        """Return the parameters of a block, or for None the resident parameters."""
        return self._by_block.get(block, [])

    def perturbable_tensors(self, block: int | None) -> dict[int, Tensor]:
        """Return flat views of the tensors with which a part computes, by first element in θ."""
        if block is None:
            return self._resident
        if self._perturbed_buffer is None:
            return {p.first: self.theta_of(p) for p in self.parameters_of(block)}
        self.stream.load_block(block)
        views = self._perturbed_blocks[block].views(self._perturbed_buffer)
        self.stream.set_tensors(views)
        return {p.first: views[p.name].view(-1) for p in self.parameters_of(block)}

    def _apply_deferred(self, block: int) -> None:
        """Apply the deferred updates to a newly loaded block."""
        updates = self._updates[self._applied[block] :]
        self._applied[block] = len(self._updates)
        for parameter in self._by_block[block]:
            for update in updates:
                self._apply(update, parameter)

    def _apply(self, update: RangeUpdate, parameter: "_Parameter") -> None:
        for first, count in parameter.chunks(self.chunk):
            update(first, count)

    def _views(
        self, first: int, count: int, changes: bool = False
    ) -> "Iterator[tuple[_Parameter, Tensor]]":
        """Yield parameters and views of their θ that together cover a range of elements."""
        index = bisect_right(self._starts, first) - 1
        while count:
            parameter = self._parameters[index]
            start = first - parameter.first
            view = self.theta_of(parameter)[start : start + count]
            if changes and parameter.block is not None:
                self.stream.mark_changed()
            yield parameter, view
            first, count, index = first + len(view), count - len(view), index + 1


@dataclass(frozen=True)
class _Parameter:
    """A parameter of the network, with its range of elements in θ and its storage.

    Attributes:
        first: index of its first element in θ.
        end: index after its last element.
        block: index of its block; None if it is resident.
        name: its name within the block, or within the network.
        stored_dtype: data type in which its θ is stored.
    """

    first: int
    end: int
    block: int | None
    name: str
    stored_dtype: torch.dtype

    def chunks(self, most: int) -> Iterator[tuple[int, int]]:
        """Yield (first element, length) of consecutive ranges of at most `most` elements."""
        for first in range(self.first, self.end, most):
            yield first, min(most, self.end - first)

    def overlaps(self, first: int, count: int) -> bool:
        """Return whether the parameter has elements in a range of θ."""
        return self.first < first + count and first < self.end


class _PerturbedPart:
    """A block, or the resident parameters, computing with θ + offset·z."""

    def __init__(self, space: StreamedFullSpace, block: int | None) -> None:
        self._space, self._block = space, block
        self._seed, self._offset = 0, 0.0
        if block is not None:
            space.stream.load_block(block)

    def perturb(self, seed: int, offset: float) -> None:
        """Make the part compute with θ + offset·z."""
        if (seed, offset) == (self._seed, self._offset):
            return
        if self._offset and seed != self._seed and not self._space.keeps_copy:
            self._move(self._seed, 0.0)
        self._move(seed, offset)

    def restore(self) -> None:
        """Make the part compute with θ."""
        if self._offset:
            self._move(self._seed, 0.0)

    def _move(self, seed: int, offset: float) -> None:
        space, block = self._space, self._block
        if space.keeps_copy and block is not None and not offset:
            space.stream.set_tensors(space.stream.load_block(block))
            self._seed, self._offset = seed, offset
            return
        perturbable = space.perturbable_tensors(block)
        for parameter in space.parameters_of(block):
            for first, count in parameter.chunks(space.chunk):
                elements = slice(first - parameter.first, first - parameter.first + count)
                theta = space.theta_of(parameter)[elements]
                if not space.keeps_copy:
                    z = space.perturbation(seed, first, count, space.scaling)
                    theta.copy_(theta.float() + z * (offset - self._offset))
                elif offset:
                    z = space.perturbation(seed, first, count, space.scaling)
                    perturbable[parameter.first][elements].copy_(theta + z * offset)
                else:
                    perturbable[parameter.first][elements].copy_(theta)
        if block is not None and not space.keeps_copy:
            space.stream.mark_changed()
        self._seed, self._offset = seed, offset


def _list_parameters(
    base: BaseModel, named: list[tuple[str, Tensor]], store: BlockStore
) -> list[_Parameter]:
    """Return every parameter in the network's order; resident parameters are stored in float32."""
    stored_dtypes: dict[tuple[int | None, str], torch.dtype] = {
        (block, part.name): part.dtype
        for block, packed_block in enumerate(store.packed_blocks)
        for part in packed_block.tensors
    }
    in_blocks = {
        id(parameter): (index, name)
        for index, block in enumerate(base.blocks)
        for name, parameter in block.named_parameters()
    }
    parameters, first = [], 0
    for full_name, tensor in named:
        block, name = in_blocks.get(id(tensor), (None, full_name))
        stored_dtype = stored_dtypes.get((block, name), torch.float32)
        end = first + tensor.numel()
        parameters.append(_Parameter(first, end, block, name, stored_dtype))
        first = end
    return parameters


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
