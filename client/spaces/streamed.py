"""All parameters of a base whose blocks are streamed (ZO2, Wang et al. 2025, algorithms 2 and 3).

A block is moved on once per step: when it comes by, the last step's update is made on it, then it
is computed with at θ + ε·z and at θ − ε·z of every direction, and goes back (section 5.4). The
paper carries the state of a random generator from block to block; here a direction's elements are a
function of seed and place, so nothing has to be carried (section 5.1). All arithmetic is that of
`FullSpace`, element by element, so θ has the same bits.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client.spaces.full import check_trainable
from client.spaces.space import (
    CPU_CHUNK,
    DEVICE_CHUNK,
    NO_SEEDS,
    Move,
    Run,
    Space,
    SpaceTensor,
    check_both_sides,
    no_adapter,
)
from client.streaming.block_store import BlockStore, allocate
from client.streaming.stream import DEFAULT_SCHEDULING, BlockStream, Scheduling
from shared.directions import BOTH_SIDES, WHOLE_BLOCKS, Distribution
from shared.layout import Layout
from shared.model.loading import BaseModel
from shared.replay import Backend


class StreamedFullSpace(Space):
    """The parameters of a network whose blocks lie in a store that may be changed.

    Attributes:
        stream: of the blocks.

    Args:
        base: its blocks are placeholders, and no stream is attached to it yet.
        store: of the blocks, where they begin; it holds θ of the blocks from now on.
        backend: draws directions.
        keep_copy: as in `FullSpace`: θ is kept in float32 and every point is made from it;
            otherwise θ itself is moved to a point and back.
        deferred: make a step's update on a block when it next comes by, not in a pass of its own.
        distribution: of the directions.
        scheduling: for measurements.

    Raises:
        ModelError: if the weights are quantized, the model is too large for a direction, or the
            memory too small.
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
        adapter, self._here = no_adapter()
        super().__init__(tensors, adapter, base.network.device, backend, distribution)
        dtype: torch.dtype = base.network.dtype
        kept = {part.dtype for packed_block in store.packed_blocks for part in packed_block.parts}
        own = torch.float32 if keep_copy else dtype
        if kept != {own}:
            self.state = f"{', '.join(sorted(map(_name, kept)))}, streamed"
        elif not keep_copy:
            self.state = f"{_name(dtype)}, in place"
        self.drifts = not keep_copy
        self._deferred, self._keep_copy = deferred, keep_copy
        self._held = _held(base, named, store)
        self._starts = [held.first for held in self._held]
        self._resident = {
            held.first: parameter.detach().view(-1)
            for held, (_, parameter) in zip(self._held, named, strict=True)
            if held.block is None
        }
        self._theta = {
            first: shown.to(torch.float32, copy=True) if keep_copy else shown
            for first, shown in self._resident.items()
        }
        self._parts: dict[int | None, list[_Held]] = {}
        for held in self._held:
            self._parts.setdefault(held.block, []).append(held)
        self._seeds, self._epsilon = NO_SEEDS, 0.0
        self._moves: list[Move] = []
        self._made = [0] * len(store.packed_blocks)
        self.stream = BlockStream(base, store, own, True, scheduling, self._make_moves)
        self._points = [packed_block.with_dtype(dtype) for packed_block in store.packed_blocks]
        self._point: Tensor | None = None
        if keep_copy:
            largest = max(packed_block.bytes for packed_block in self._points)
            self._point = allocate(largest, self._device)

    def values(self, first: int, count: int) -> Tensor:
        """Of the resident parameters or of the block that they are in, which comes by for it."""
        # Copies: a block's memory is another's when the next one comes.
        found = torch.empty(count, device=self._device)
        start = 0
        for _, piece in self._pieces(first, count):
            found[start : start + len(piece)] = piece
            start += len(piece)
        return found

    @torch.inference_mode()
    def assign(self, first: int, values: Tensor) -> None:
        """In the resident parameters, or in a block, which goes back when the next one comes.

        Beside a copy a block's θ is rounded here to the type that it travels in, and not only when
        it goes, so that its bits do not depend on when it comes by.
        """
        start = 0
        for held, piece in self._pieces(first, len(values), changes=True):
            new = values[start : start + len(piece)]
            piece.copy_(new.to(held.travels) if self._keep_copy else new)
            start += len(piece)
        for held in self._parts.get(None, []):
            if self._keep_copy and held.first < first + len(values) and first < held.end:
                self._resident[held.first].copy_(self._theta[held.first])

    @torch.inference_mode()
    def evaluate(
        self,
        run: Run,
        seeds: NDArray[np.uint64] = NO_SEEDS,
        epsilon: float = 0.0,
        signs: tuple[int, ...] = BOTH_SIDES,
    ) -> NDArray[np.float32]:
        """Run a `StreamedForward` that stands where this space does; see `visit`."""
        check_both_sides(signs)
        if not len(seeds):
            self.flush()
            return run(self._here)
        self._seeds, self._epsilon = seeds, epsilon
        try:
            return run(Around(len(seeds)))
        finally:
            self._seeds, self._epsilon = NO_SEEDS, 0.0

    def direction(self, seed: int, first: int, count: int) -> Tensor:
        """As in every space, from any element on."""
        before = first % WHOLE_BLOCKS
        whole: Tensor = super().direction(seed, first - before, before + count)
        return whole[before:]

    def in_parts(self, move: Move) -> None:
        """At once on what is resident, and on a block when it next comes by."""
        for held in self._parts.get(None, []):
            self._on(held, move)
        self._moves.append(move)
        if not self._deferred:
            self.flush()

    @torch.inference_mode()
    def flush(self) -> None:
        """Make what was put off on every block, and bring all of them back to the store.

        Raises:
            ModelError: if a block cannot be read or written.
        """
        for block, made in enumerate(self._made):
            if made < len(self._moves):
                self.stream.load_block(block)
        self.stream.finish_writes()
        self._moves.clear()
        self._made = [0] * len(self._made)

    @contextmanager
    def at_stage(self, stop: int) -> Iterator[Callable[[int], None]]:
        """A part of the model at one point after the other; at the end it stands at θ.

        Args:
            stop: a block, or what is resident: before the blocks, and once more behind them.

        Yields:
            What has the part stand at a point, by its index among θ + ε·z of every seed and then
            θ − ε·z of every seed.
        """
        block = stop if 0 <= stop < self.stream.block_count else None
        stand = _Stand(self, block)
        # What is resident is visited twice, and what is moved in place must drift once only.
        passes_by = block is None and stop < 0 and not self._keep_copy
        saved = {f: t.clone() for f, t in self._resident.items()} if passes_by else {}
        try:
            yield lambda point: stand.at(*self._side(point))
        finally:
            stand.back()
            for first, before in saved.items():
                self._resident[first].copy_(before)

    def _side(self, point: int) -> tuple[int, float]:
        """Seed and signed ε of a point; without seeds it is θ."""
        if not len(self._seeds):
            return 0, 0.0
        sign, query = divmod(point, len(self._seeds))
        return int(self._seeds[query]), -self._epsilon if sign else self._epsilon

    def theta_of(self, held: "_Held") -> Tensor:
        """θ of a tensor, flat."""
        if held.block is None:
            resident: Tensor = self._theta[held.first]
            return resident
        there: Tensor = self.stream.load_block(held.block)[held.name].view(-1)
        return there

    def parts_of(self, block: int | None) -> "list[_Held]":
        """The tensors of a block, or the resident ones."""
        return self._parts.get(block, [])

    def shown_of(self, block: int | None) -> dict[int, Tensor]:
        """What the network computes with at a point, flat, by first element."""
        if block is None:
            return self._resident
        if self._point is None:
            return {held.first: self.theta_of(held) for held in self.parts_of(block)}
        self.stream.load_block(block)
        views = self._points[block].views(self._point)
        self.stream.set_tensors(views)
        return {held.first: views[held.name].view(-1) for held in self.parts_of(block)}

    @property
    def chunk(self) -> int:
        """Elements of a direction that exist at a time."""
        return CPU_CHUNK if self._device.type == "cpu" else DEVICE_CHUNK

    @property
    def keeps_copy(self) -> bool:
        """Whether points are made beside θ."""
        return self._keep_copy

    def _make_moves(self, block: int) -> None:
        """What was put off, on a block that has just come."""
        moves = self._moves[self._made[block] :]
        self._made[block] = len(self._moves)
        for held in self._parts[block]:
            for move in moves:
                self._on(held, move)

    def _on(self, held: "_Held", move: Move) -> None:
        for first in range(held.first, held.end, self.chunk):
            move(first, min(self.chunk, held.end - first))

    def _pieces(
        self, first: int, count: int, changes: bool = False
    ) -> "Iterator[tuple[_Held, Tensor]]":
        """The parts of θ's tensors that a range of elements covers, as views."""
        index = bisect_right(self._starts, first) - 1
        while count:
            held = self._held[index]
            start = first - held.first
            piece = self.theta_of(held)[start : start + count]
            if changes and held.block is not None:
                self.stream.mark_changed()
            yield held, piece
            first, count, index = first + len(piece), count - len(piece), index + 1


@dataclass(frozen=True)
class _Held:
    """A tensor of θ: its elements, the block that it is in, by its name there, and its type."""

    first: int
    end: int
    block: int | None
    name: str
    travels: torch.dtype


class Around:
    """Perturbations that are made of parameters: θ ± ε·z, sign by sign, each of every query."""

    layout = Layout((), 1, 1.0, 0, "gaussian")
    clients = 1

    def __init__(self, queries: int, count: int = 0) -> None:
        self.queries, self.count = queries, count or 2 * queries

    def select(self, signs: slice, queries: slice) -> "Around":
        """Those of some signs and some queries."""
        some = len(range(self.queries)[queries])
        return Around(some, some * len(range(2)[signs]))

    def tensor(self, name: str) -> Tensor:
        """There are none beside the parameters."""
        raise KeyError(name)


class _Stand:
    """Where a part of the model stands."""

    def __init__(self, space: StreamedFullSpace, block: int | None) -> None:
        self._space, self._block = space, block
        self._seed, self._stands = 0, 0.0
        if block is not None:
            space.stream.load_block(block)

    def at(self, seed: int, to: float) -> None:
        """Go to θ + to·z."""
        if (seed, to) == (self._seed, self._stands):
            return
        if self._stands and seed != self._seed and not self._space.keeps_copy:
            self._shift(self._seed, 0.0)
        self._shift(seed, to)

    def back(self) -> None:
        """Go to θ."""
        if self._stands:
            self._shift(self._seed, 0.0)

    def _shift(self, seed: int, to: float) -> None:
        space, block = self._space, self._block
        if space.keeps_copy and block is not None and not to:
            space.stream.set_tensors(space.stream.load_block(block))
            self._seed, self._stands = seed, to
            return
        shown = space.shown_of(block)
        for held in space.parts_of(block):
            for first in range(held.first, held.end, space.chunk):
                count = min(space.chunk, held.end - first)
                place = slice(first - held.first, first - held.first + count)
                theta = space.theta_of(held)[place]
                if not space.keeps_copy:
                    step = space.direction(seed, first, count) * (to - self._stands)
                    theta.copy_(theta.float() + step)
                elif to:
                    step = space.direction(seed, first, count) * to
                    shown[held.first][place].copy_(theta + step)
                else:
                    shown[held.first][place].copy_(theta)
        if block is not None and not space.keeps_copy:
            space.stream.mark_changed()
        self._seed, self._stands = seed, to


def _held(base: BaseModel, named: list[tuple[str, Tensor]], store: BlockStore) -> list[_Held]:
    """Every parameter, in the network's order; what is resident is kept in float32."""
    travels: dict[tuple[int | None, str], torch.dtype] = {
        (block, part.name): part.dtype
        for block, packed_block in enumerate(store.packed_blocks)
        for part in packed_block.parts
    }
    in_blocks = {
        id(parameter): (index, name)
        for index, block in enumerate(base.blocks)
        for name, parameter in block.named_parameters()
    }
    found, first = [], 0
    for name, parameter in named:
        block, own = in_blocks.get(id(parameter), (None, name))
        kept = travels.get((block, own), torch.float32)
        found.append(_Held(first, first + parameter.numel(), block, own, kept))
        first += parameter.numel()
    return found


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
