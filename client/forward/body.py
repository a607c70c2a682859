"""A body over the rows of several points, with what does not differ between points run once.

Blocks below the lowest adapter (the trunk) give the same output for every point, so they run once
per example, alone, and their outputs are kept under a byte budget. The blocks above run over all
rows, P points × m sequences, at once. The last one runs only where its output is read.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from client.forward.last_block import Cut
from client.forward.shared_parts import find_parts_without_adapters, share_across_perturbations
from client.forward.supervised import find_position_wise_modules, replaced, run_at_positions
from client.forward.trunk_cache import Ids, TrunkCache
from shared.errors import ModelError
from shared.model.loading import BaseModel
from shared.model.lora_fa import LoRAFALinear, is_linear

_PROBE_TOKENS = 7
_TOLERANCE, _TOLERANCE_OF_HALF = 1e-4, 0.05
"""By which a probe in two ways may differ, of its largest number."""


class PerturbedBody:
    """A base model's body over sequences of several points, with the trunk shared between them.

    Args:
        base: the model, with or without adapters in it.
        first_block: the lowest block that differs between points.
        cache: keeps the trunk's outputs; without it the trunk runs inside each pass.
    """

    def __init__(self, base: BaseModel, first_block: int, cache: TrunkCache | None = None) -> None:
        self._base, self._blocks = base, base.blocks
        self._first_block, self._cache = first_block, cache
        self._block_returns_tuple = False
        self._alike = find_parts_without_adapters(self._blocks[first_block])
        with torch.inference_mode():
            self._note_what_blocks_return()
            self._local = [] if base.family == "encoder" else self._local_modules()
            seeing_all = None if base.family == "encoder" else self._parts_seeing_all()
        self._can_cut = seeing_all is not None
        self._widens_late = first_block == len(self._blocks) - 1 and not _has_adapters(seeing_all)

    def __call__(
        self,
        sequences: Sequence[Ids],
        perturbations: int = 1,
        supervised: Sequence[Sequence[int]] | None = None,
        keep: bool = True,
    ) -> Tensor:
        """Hidden states of every sequence at every point.

        Args:
            sequences: m token sequences.
            points: P, how many adapters are active.
            supervised: the positions of each sequence that will be read, if not all of them.
            keep: whether the trunk's outputs may be wanted again; otherwise no cache is used.

        Returns:
            [P·m, S, hidden] in the compute type, points outermost, padded on the right; where it
            will not be read it may hold anything finite.

        Raises:
            ModelError: if a sequence is longer than the model's context.
        """
        ids, mask = self._padded(sequences)
        with ExitStack() as stack:
            trunk = None
            if self._cache is not None and keep:
                trunk = nn.utils.rnn.pad_sequence(
                    [self._trunk(sequence, self._cache) for sequence in sequences],
                    batch_first=True,
                )
                stack.enter_context(self._passing_through(0, self._first_block))
            early = self._points_before_last(perturbations, supervised)
            stack.enter_context(self._widening(ids.shape, early, trunk))
            stack.enter_context(self._alike_once(early, ids))
            if supervised is not None:
                enter = stack.enter_context(self._last_block_at(supervised, perturbations, ids))
                stack.enter_context(_given(self._blocks[-1], enter))
            hidden: Tensor = self._base.body(input_ids=ids, attention_mask=mask).last_hidden_state
        return self._uncut(hidden, supervised, perturbations, ids)

    def forward_padded(self, ids: Tensor, perturbations: int) -> Tensor:
        """Hidden states of padded sequences at every point, for a causal model to be exported.

        Args:
            ids: int64 [m, S]; what is padded on the right is not seen by what is read before it.
            points: P, how many adapters are active.

        Returns:
            [P·m, S, hidden], points outermost.
        """
        with self._widening(ids.shape, perturbations, None):
            hidden: Tensor = self._base.body(input_ids=ids).last_hidden_state
        return hidden

    def _padded(self, sequences: Sequence[Ids]) -> tuple[Tensor, Tensor]:
        pad = self._base.tokenizer.pad_token_id or 0
        longest = max(len(sequence) for sequence in sequences)
        if longest > self._base.context:
            raise ModelError(
                f"{self._base.folder}: a sequence has {longest} tokens and the model reads at most "
                f"{self._base.context}; lower model.max-length"
            )
        ids = torch.tensor([list(s) + [pad] * (longest - len(s)) for s in sequences])
        mask = torch.tensor([[1] * len(s) + [0] * (longest - len(s)) for s in sequences])
        device = self._base.network.device
        return ids.to(device), mask.to(device)

    def _trunk(self, sequence: Ids, cache: TrunkCache) -> Tensor:
        """The input of the first adapted block for one sequence alone, [S, hidden].

        Alone, so that it does not depend on what else is in the batch or was cached.
        """
        network = self._base.network
        if (known := cache.get(sequence)) is not None:
            return known.to(network.device, network.dtype)
        ids, mask = self._padded([sequence])
        found: list[Tensor] = []

        def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            found.append(args[0] if args else kwargs["hidden_states"])

        with ExitStack() as stack:
            first = self._blocks[self._first_block]
            handle = first.register_forward_pre_hook(keep, with_kwargs=True)
            stack.callback(handle.remove)
            stack.enter_context(self._passing_through(self._first_block, len(self._blocks)))
            self._base.body(input_ids=ids, attention_mask=mask)
        return cache.put(sequence, found[0][0].clone()).to(network.device, network.dtype)

    def _alike_once(self, perturbations: int, ids: Tensor) -> AbstractContextManager[None]:
        """The first adapted block does once what is the same for all points."""
        if perturbations == 1 or not self._alike:
            return nullcontext()
        first = self._blocks[self._first_block]
        shape = perturbations * len(ids), ids.shape[1]
        return share_across_perturbations(first, self._alike, perturbations, shape)

    def _points_before_last(
        self, perturbations: int, supervised: Sequence[Sequence[int]] | None
    ) -> int:
        """How many points rows are repeated for before the last block.

        If only what follows the attention of that block differs between points, rows are repeated
        there, and only those that are read.
        """
        return 1 if self._widens_late and supervised is not None else perturbations

    @contextmanager
    def _last_block_at(
        self, supervised: Sequence[Sequence[int]], perturbations: int, ids: Tensor
    ) -> Iterator[Callable[[Tensor], Tensor]]:
        """The last block does at supervised positions only what the others do not need.

        Yields:
            What its input has to go through.
        """
        early = self._points_before_last(perturbations, supervised)
        rows, positions = _indices(supervised, early, ids)
        shape = early * len(ids), ids.shape[1]
        with run_at_positions(self._local, shape, rows, positions):
            if not self._can_cut:
                yield lambda hidden: hidden
                return
            cut = Cut(shape, rows, positions, perturbations // early)
            with cut.within(self._blocks[-1]):
                yield cut.enter

    def _uncut(
        self,
        hidden: Tensor,
        supervised: Sequence[Sequence[int]] | None,
        perturbations: int,
        ids: Tensor,
    ) -> Tensor:
        """Hidden states in their places, [P·m, S, hidden], anything finite where none are read."""
        if supervised is None or not self._can_cut:
            return hidden
        if all(len(places) == 1 for places in supervised):  # what is read may stand everywhere
            return hidden.expand(-1, ids.shape[1], -1)
        whole = hidden.new_zeros(perturbations * len(ids), ids.shape[1], hidden.shape[2])
        whole[_indices(supervised, perturbations, ids)] = hidden[:, 0]
        return whole

    def _local_modules(self) -> list[nn.Module]:
        """Parts of the last block that may be left to supervised positions."""
        probe = self._probe()

        def run() -> Tensor:
            with self._passing_through(0, len(self._blocks) - 1):
                hidden: Tensor = self._base.body(**probe).last_hidden_state
            return hidden

        return find_position_wise_modules(self._blocks[-1], is_linear, run)

    def _parts_seeing_all(self) -> list[nn.Module] | None:
        """Parts of the last block, with linear layers, that are given all positions when the others
        are given those that are read; None if that does not give what it should.

        That the others need no more is known from NaN; a number that is nearly right only says that
        hidden states went the way they were meant to.
        """
        length = min(_PROBE_TOKENS, self._base.context)
        ids, mask = self._padded([tuple(range(1, 1 + length)), tuple(range(length, 0, -1))])
        rows, positions = _indices([(0, length // 2), (length - 1,)], 1, ids)
        cut, block = Cut((2, length), rows, positions), self._blocks[-1]
        with self._passing_through(0, len(self._blocks) - 1):
            whole = self._base.body(input_ids=ids, attention_mask=mask).last_hidden_state
            try:
                with cut.within(block), _given(block, cut.enter):
                    found = self._base.body(input_ids=ids, attention_mask=mask).last_hidden_state
            except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
                return None
        expected = whole[rows, positions][:, None]
        linear = [part for part in block.children() if any(map(is_linear, part.modules()))]
        known = {id(part) for part in (*cut.seeing_all, *self._local)}
        if found.shape != expected.shape or not known.issuperset(map(id, linear)):
            return None
        error = (found - expected).abs().max() / expected.abs().max()
        tolerance = _TOLERANCE if whole.dtype == torch.float32 else _TOLERANCE_OF_HALF
        return cut.seeing_all if float(error) <= tolerance else None

    def _note_what_blocks_return(self) -> None:
        """A tensor, or a tuple that begins with it, as older blocks do."""

        def note(_: nn.Module, __: Any, output: Any) -> None:
            self._block_returns_tuple = isinstance(output, tuple)

        handle = self._blocks[0].register_forward_hook(note)
        with self._passing_through(1, len(self._blocks)):
            self._base.body(**self._probe())
        handle.remove()

    def _probe(self) -> dict[str, Tensor]:
        ids, mask = self._padded([tuple(range(1, 1 + min(_PROBE_TOKENS, self._base.context)))])
        return {"input_ids": ids, "attention_mask": mask}

    @contextmanager
    def _passing_through(self, start: int, stop: int) -> Iterator[None]:
        """Blocks start … stop − 1 return their input."""

        def identity(*args: Any, **kwargs: Any) -> Any:
            hidden = args[0] if args else kwargs["hidden_states"]
            return (hidden,) if self._block_returns_tuple else hidden

        with ExitStack() as stack:
            for block in self._blocks[start:stop]:
                stack.enter_context(replaced(block, identity))
            yield

    @contextmanager
    def _widening(
        self, shape: torch.Size, perturbations: int, trunk: Tensor | None
    ) -> Iterator[None]:
        """Repeat the rows for every point at the first adapted block, and masks from there on."""
        sequences, length = shape

        def per_row(value: Any) -> bool:
            return (
                isinstance(value, Tensor)
                and value.ndim >= 2
                and len(value) == sequences
                and (value.shape[1] == length or value.ndim == 4)
            )

        def repeated(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(repeated(part) for part in value)
            return value.repeat(perturbations, *[1] * (value.ndim - 1)) if per_row(value) else value

        def widen(
            block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            args, kwargs = list(args), dict(kwargs)  # type: ignore[assignment]
            place: Any = (args, 0) if args else (kwargs, "hidden_states")
            hidden = place[0].pop(place[1])
            if block is self._blocks[self._first_block]:
                hidden = repeated(hidden if trunk is None else trunk)
            rest = tuple(repeated(value) for value in args)
            kwargs = {name: repeated(value) for name, value in kwargs.items()}
            if place[0] is args:
                return (hidden, *rest), kwargs
            return rest, {"hidden_states": hidden} | kwargs

        handles = [
            block.register_forward_pre_hook(widen, with_kwargs=True)
            for block in self._blocks[self._first_block :]
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _indices(
    supervised: Sequence[Sequence[int]], perturbations: int, ids: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows and positions, int64 [n] each, that are read of sequences repeated for some points."""
    index = [(row, place) for row, places in enumerate(supervised) for place in places]
    rows, positions = torch.tensor(index, device=ids.device).T
    first_rows = torch.arange(perturbations, device=ids.device) * len(ids)
    return (first_rows[:, None] + rows).flatten(), positions.repeat(perturbations)


def _has_adapters(parts: Sequence[nn.Module] | None) -> bool:
    """Whether some of these parts do, or may do because they are not known."""
    if parts is None:
        return True
    return any(isinstance(module, LoRAFALinear) for part in parts for module in part.modules())


@contextmanager
def _given(block: nn.Module, enter: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside, a block's input goes through something first."""

    def change(
        _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (enter(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": enter(kwargs["hidden_states"])}

    handle = block.register_forward_pre_hook(change, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
