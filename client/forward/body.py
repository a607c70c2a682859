"""A body over the rows of several points, with what does not differ between points run once.

Blocks below the lowest adapter (the trunk) give the same output for every point, so they run once
per example, alone, and their outputs are kept under a byte budget. The blocks above run over all
rows, P points × m sequences, at once (P-RGE's outer and inner loop both in one pass).
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from shared.model.loading import BaseModel

Ids = tuple[int, ...]


class Body:
    """A base model's body over sequences of several points, with the trunk shared between them.

    Args:
        base: the model, with or without adapters in it.
        first_block: the lowest block that differs between points.
        cache_bytes: budget for the trunk's outputs; 0 runs the trunk inside each pass instead.
    """

    def __init__(self, base: BaseModel, first_block: int, cache_bytes: int) -> None:
        self._base, self._blocks = base, base.blocks
        self._first_block = first_block
        self._cache_bytes = cache_bytes if first_block > 0 else 0
        self._cache: OrderedDict[Ids, Tensor] = OrderedDict()
        self._cached_bytes = 0
        self._block_returns_tuple = False

    def __call__(self, sequences: Sequence[Ids], points: int = 1) -> Tensor:
        """Hidden states of every sequence at every point.

        Args:
            sequences: m token sequences.
            points: P, how many adapters are active.

        Returns:
            float32 [P·m, S, hidden], points outermost, padded on the right.
        """
        ids, mask = self._padded(sequences)
        with ExitStack() as stack:
            trunk = None
            if self._cache_bytes:
                trunk = nn.utils.rnn.pad_sequence(
                    [self._trunk(sequence) for sequence in sequences], batch_first=True
                )
                stack.enter_context(self._passing_through(0, self._first_block))
            stack.enter_context(self._widening(ids.shape, points, trunk))
            hidden: Tensor = self._base.body(input_ids=ids, attention_mask=mask).last_hidden_state
        return hidden

    def _padded(self, sequences: Sequence[Ids]) -> tuple[Tensor, Tensor]:
        pad = self._base.tokenizer.pad_token_id or 0
        longest = max(len(sequence) for sequence in sequences)
        ids = torch.tensor([list(s) + [pad] * (longest - len(s)) for s in sequences])
        mask = torch.tensor([[1] * len(s) + [0] * (longest - len(s)) for s in sequences])
        device = self._base.network.device
        return ids.to(device), mask.to(device)

    def _trunk(self, sequence: Ids) -> Tensor:
        """The input of the first adapted block for one sequence alone, [S, hidden].

        Alone, so that it does not depend on what else is in the batch or was cached.
        """
        if (known := self._cache.get(sequence)) is not None:
            self._cache.move_to_end(sequence)
            return known
        ids, mask = self._padded([sequence])
        found: list[Tensor] = []

        def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            found.append(args[0] if args else kwargs["hidden_states"])

        with ExitStack() as stack:
            first = self._blocks[self._first_block]
            handle = first.register_forward_pre_hook(keep, with_kwargs=True)
            stack.callback(handle.remove)
            below = self._blocks[self._first_block - 1].register_forward_hook(self._note_kind)
            stack.callback(below.remove)
            stack.enter_context(self._passing_through(self._first_block, len(self._blocks)))
            self._base.body(input_ids=ids, attention_mask=mask)
        trunk = found[0][0].clone()
        self._cache[sequence] = trunk
        self._cached_bytes += trunk.nbytes
        while self._cached_bytes > self._cache_bytes and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= dropped.nbytes
        return trunk

    def _note_kind(self, _: nn.Module, __: Any, output: Any) -> None:
        self._block_returns_tuple = isinstance(output, tuple)

    @contextmanager
    def _passing_through(self, start: int, stop: int) -> Iterator[None]:
        """Blocks start … stop − 1 return their input."""

        def identity(*args: Any, **kwargs: Any) -> Any:
            hidden = args[0] if args else kwargs["hidden_states"]
            return (hidden,) if self._block_returns_tuple else hidden

        for block in self._blocks[start:stop]:
            block.forward = identity
        try:
            yield
        finally:
            for block in self._blocks[start:stop]:
                del block.forward

    @contextmanager
    def _widening(self, shape: torch.Size, points: int, trunk: Tensor | None) -> Iterator[None]:
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
            return value.repeat(points, *[1] * (value.ndim - 1)) if per_row(value) else value

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
