"""A model's body under several perturbations, which share equal intermediate results.

Blocks below the lowest adapter (the trunk) give the same output under every perturbation. They run
once per example, on that example alone, and their outputs are cached under a byte budget. The
blocks above run over all rows, P perturbations × m sequences, at once. The last block runs only at
the positions whose output is read. Short sequences may share a row (`samara.client.forward.rows`).

`samara.client.forward.self_check` finds the architectures that cannot be computed in this way. Such
a model runs as a whole, over all rows or over the rows of one length at a time, or is refused.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from samara.client.forward.last_block import PositionSelector
from samara.client.forward.proven_body import (
    PROBE_TOKENS,
    ProvenBody,
    Way,
    differ_by_rounding,
    has_adapters,
)
from samara.client.forward.rows import Rows
from samara.client.forward.shared_parts import (
    find_parts_without_adapters,
    share_across_perturbations,
)
from samara.client.forward.supervised import run_at_positions
from samara.client.forward.trunk_cache import Ids, TrunkCache
from samara.client.forward.turns import forward_pass
from samara.shared.model.layer_selection import is_linear
from samara.shared.model.loading import ORIGINAL_LENGTH, BaseModel
from samara.shared.model.prefix_cache import Prefix, read_prefix

_UNSUITABLE = (RuntimeError, ValueError, TypeError, IndexError, AttributeError)
"""Errors that models raise if they do not accept inputs in a changed form."""


class PerturbedBody(ProvenBody):
    """A base model's body, which runs sequences under several perturbations that share the trunk.

    Args:
        base: model, with or without adapters.
        first_block: index of the lowest block that differs between perturbations.
        cache: cache of the trunk's outputs; without a cache the trunk runs in each pass.
        packs: whether sequences share rows if packing does not change the model's output.
        prefix: tokens whose keys and values are read only once. Sequences that all begin with them
            continue from these keys and values if that does not change the model's output.

    Raises:
        ModelError: if no way of computing the body reproduces the model's output.
    """

    def __init__(
        self,
        base: BaseModel,
        first_block: int,
        cache: TrunkCache | None = None,
        packs: bool = False,
        prefix: Ids = (),
    ) -> None:
        self._base, self._blocks = base, base.blocks
        self._prefix = prefix
        self._prefix_read: tuple[int, Prefix | None] | None = None
        self._first_block, self._cache = first_block, cache
        self._outputs_of_block = 0
        with forward_pass(), torch.inference_mode():
            self._way = self._known_way(packs)

    def _prepare(self, way: Way, packs: bool) -> None:
        """Decide which shortcuts the body takes when it is computed in a given way."""
        by_block = way is Way.BY_BLOCK
        self._way = way
        if by_block:
            self._outputs_of_block = self._find_once("outputs", self._count_block_outputs)
        has_positions = by_block and self._base.family != "encoder"
        first = self._blocks[self._first_block]
        self._parts_without_adapters = find_parts_without_adapters(first) if by_block else []
        self._position_wise = self._find_position_wise() if has_positions else []
        full_input_parts = self._known_full_input_parts() if has_positions else None
        self._can_pack = by_block and packs and self._find_once("packing", self._packing_is_exact)
        self._can_select = full_input_parts is not None
        self._repeats_late = (
            by_block
            and self._first_block == len(self._blocks) - 1
            and has_adapters([self._blocks[-1]])  # else it is unknown where rows differ
            and not has_adapters(full_input_parts)
        )

    def __call__(
        self,
        sequences: Sequence[Ids],
        perturbations: int = 1,
        supervised: Sequence[Sequence[int]] | None = None,
        use_cache: bool = True,
        pack: bool = False,
    ) -> Tensor:
        """Return the hidden states of every sequence under every perturbation.

        Args:
            sequences: m token sequences.
            perturbations: number P of active perturbations.
            supervised: positions to be read in each sequence; None for all.
            use_cache: whether to use the cache of the trunk's outputs, if there is one.
            pack: whether sequences may share rows if `supervised` is given.

        Returns:
            [P·m, S, hidden] in the compute type, ordered by perturbation and padded on the right;
            unsupervised positions hold arbitrary finite numbers.

        Raises:
            ModelError: if a sequence is longer than the model's context.
        """
        if self._way is not Way.BY_BLOCK:
            return self._run_whole(sequences, perturbations)
        rows = self._rows(sequences, supervised, pack)
        with ExitStack() as stack:
            trunk = None
            if self._cache is not None and use_cache:
                cache = self._cache
                trunk = rows.arrange(self._trunk_output(sequence, cache) for sequence in sequences)
                stack.enter_context(self._skipping_blocks(0, self._first_block))
            early = self._perturbations_before_last(perturbations, supervised)
            stack.enter_context(self._repeating_rows(rows.ids.shape, early, trunk))
            stack.enter_context(self._sharing_before_adapters(early, rows.ids))
            if supervised is not None:
                select = stack.enter_context(self._last_block_at(supervised, perturbations, rows))
                stack.enter_context(_changed_input(self._blocks[-1], select))
            hidden = self._hidden_states(rows)
        return self._restore_positions(hidden, supervised, perturbations, rows)

    def continue_texts(self, tokens: Sequence[Ids], cache: Any = None) -> tuple[Tensor, Any]:
        """Return the hidden states of the last tokens of a causal model's texts, and the KV cache.

        Args:
            tokens: tokens of m texts of equal length; with a cache, only the tokens not yet in it.
            cache: keys and values of the texts so far, as returned by the previous call.

        Returns:
            [m, hidden], and the cache for the next call. The cache is None if the model has none,
            or if states computed with it differ from those of a pass over the whole text. One more
            token may change the rotation of all keys; the cache is then None for this call only.
        """
        ids = torch.tensor(tokens, device=self._base.network.device)
        if self._find_once("cache", self._caching_is_exact):
            hidden, cache = self._continue(ids, cache)
            changes = [each.get(ORIGINAL_LENGTH) for each in self._base.rotations_by_length]
            is_last = bool(changes) and cache.get_seq_length() in changes
            return hidden[:, -1], None if is_last else cache
        return self._base.body(input_ids=ids).last_hidden_state[:, -1], None

    def _caching_is_exact(self) -> bool:
        """Return whether continuing from a KV cache gives the same states as a whole pass."""
        length = min(PROBE_TOKENS, self._base.context)
        whole = torch.arange(1, 1 + length, device=self._base.network.device).expand(2, length)
        try:
            _, cache = self._continue(whole[:, :-1])
            last, _ = self._continue(whole[:, -1:], cache)
        except _UNSUITABLE:
            return False
        expected = self._base.body(input_ids=whole).last_hidden_state[:, -1]
        return cache is not None and differ_by_rounding(last[:, -1], expected)

    def _continue(self, ids: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        """Return the hidden states of the tokens that follow a KV cache, and the extended cache."""
        output = self._base.body(input_ids=ids, past_key_values=cache, use_cache=True)
        return output.last_hidden_state, getattr(output, "past_key_values", None)

    def _known_prefix(
        self, sequences: Sequence[Ids], supervised: Sequence[Sequence[int]] | None
    ) -> Prefix | None:
        """Return the keys and values of the prefix if these sequences can continue from them."""
        count = len(self._prefix)
        if (
            not count
            or self._cache is not None
            or supervised is None
            or any(sequence[:count] != self._prefix for sequence in sequences)
            or min(map(min, supervised)) < count
            or max(map(len, sequences)) > self._base.context
            or not self._find_once("prefix", self._continuing_is_exact)
        ):
            return None
        threads = torch.get_num_threads()  # the last bits depend on it
        if self._prefix_read is None or self._prefix_read[0] != threads:
            self._prefix_read = threads, read_prefix(self._base, self._prefix)
        return self._prefix_read[1]

    def _continuing_is_exact(self) -> bool:
        """Return whether tokens after a prefix have the same states as in a pass over all tokens.

        Some models have blocks of several kinds, so one block of each kind is tried.
        """
        if self._base.rotations_by_length:
            return False  # the prefix alone has other keys than in a pass over all tokens
        length = min(PROBE_TOKENS, self._base.context)
        middle = length // 2
        whole = tuple(range(1, 1 + length))
        sequences = [whole, whole[:middle] + whole[:middle:-1]]
        with self._one_block_of_each_kind():
            try:
                prefix = read_prefix(self._base, whole[:middle])
                if prefix is None:
                    return False
                found = self._hidden_states(Rows.after(self._base, prefix, sequences))
            except _UNSUITABLE:
                return False
            return all(
                differ_by_rounding(
                    found[index, : len(sequence) - middle],
                    self._hidden_states(Rows.of(self._base, [sequence]))[0, middle:],
                )
                for index, sequence in enumerate(sequences)
            )

    def forward_padded(self, ids: Tensor, perturbations: int) -> Tensor:
        """Return the hidden states of padded sequences, for export of a causal model.

        Args:
            ids: int64 [m, S], padded on the right, so that causal attention does not see the
                padding.
            perturbations: number P of active perturbations.

        Returns:
            [P·m, S, hidden], ordered by perturbation.
        """
        if self._way is not Way.BY_BLOCK:
            ids = ids.repeat(perturbations, 1)
            perturbations = 1
        with self._repeating_rows(ids.shape, perturbations, None):
            hidden: Tensor = self._base.body(input_ids=ids).last_hidden_state
        return hidden

    def _run_to_check(
        self, sequences: Sequence[Ids], perturbations: int, read: Sequence[Sequence[int]] | None
    ) -> Tensor:
        return self(sequences, perturbations, read)

    def _run_whole(self, sequences: Sequence[Ids], perturbations: int) -> Tensor:
        """Run the whole model over rows repeated for every perturbation.

        Depending on the way, all rows run together, or the rows of one length at a time.
        """
        lengths = [len(sequence) for sequence in sequences]
        groups = [list(range(len(sequences)))]
        if self._way is Way.BY_LENGTH:
            groups = [[i for i, n in enumerate(lengths) if n == length] for length in set(lengths)]
        parts = []
        for group in groups:
            rows = Rows.of(self._base, [sequences[index] for index in group])
            hidden = self._hidden_states(rows.repeat(perturbations))
            parts.append(hidden.view(perturbations, len(group), *hidden.shape[1:]))
        if len(parts) == 1:
            return parts[0].flatten(0, 1)
        shape = perturbations, len(sequences), max(lengths), parts[0].shape[3]
        whole = parts[0].new_zeros(shape)
        for group, part in zip(groups, parts, strict=True):
            whole[:, group, : part.shape[2]] = part
        return whole.flatten(0, 1)

    def _rows(
        self, sequences: Sequence[Ids], supervised: Sequence[Sequence[int]] | None, pack: bool
    ) -> Rows:
        """Return the rows of a pass: after the prefix or packed, if that is exact."""
        if prefix := self._known_prefix(sequences, supervised):
            return Rows.after(self._base, prefix, sequences)
        packed = pack and self._can_pack and supervised is not None
        return Rows.of(self._base, sequences, packed)

    def _hidden_states(self, rows: Rows) -> Tensor:
        hidden: Tensor = self._base.body(input_ids=rows.ids, **rows.inputs).last_hidden_state
        return hidden

    def _trunk_output(self, sequence: Ids, cache: TrunkCache) -> Tensor:
        """Return the input of the first adapted block for one sequence, [S, hidden].

        The sequence runs alone, so that its output does not depend on the other sequences of a
        batch or on the content of the cache.
        """
        network = self._base.network
        if (cached := cache.get(sequence)) is not None:
            return cached.to(network.device, network.dtype)
        inputs: list[Tensor] = []

        def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            inputs.append(args[0] if args else kwargs["hidden_states"])

        with ExitStack() as stack:
            first = self._blocks[self._first_block]
            handle = first.register_forward_pre_hook(record, with_kwargs=True)
            stack.callback(handle.remove)
            stack.enter_context(self._skipping_blocks(self._first_block, len(self._blocks)))
            self._hidden_states(Rows.of(self._base, [sequence]))
        return cache.put(sequence, inputs[0][0].clone()).to(network.device, network.dtype)

    def _sharing_before_adapters(
        self, perturbations: int, ids: Tensor
    ) -> AbstractContextManager[None]:
        """Make the first adapted block compute adapter-free parts once for all perturbations."""
        if perturbations == 1 or not self._parts_without_adapters:
            return nullcontext()
        first = self._blocks[self._first_block]
        shape = perturbations * len(ids), ids.shape[1]
        return share_across_perturbations(first, self._parts_without_adapters, perturbations, shape)

    def _perturbations_before_last(
        self, perturbations: int, supervised: Sequence[Sequence[int]] | None
    ) -> int:
        """Return the number of copies of a row that enter the last block: one, or one per
        perturbation.

        One copy is enough if perturbations differ only after the attention of the last block. Then
        only the positions that are read are repeated, after the attention.
        """
        return 1 if self._repeats_late and supervised is not None else perturbations

    @contextmanager
    def _last_block_at(
        self, supervised: Sequence[Sequence[int]], perturbations: int, rows: Rows
    ) -> Iterator[Callable[[Tensor], Tensor]]:
        """Limit the last block to supervised positions, except for parts that need all positions.

        Yields:
            A function that selects these positions in the block's input.
        """
        early = self._perturbations_before_last(perturbations, supervised)
        chosen = rows.indices(supervised, early)
        shape = early * len(rows.ids), rows.ids.shape[1]
        with run_at_positions(self._position_wise, shape, *chosen):
            if not self._can_select:
                yield lambda hidden: hidden
                return
            selector = PositionSelector(shape, *chosen, perturbations // early)
            with selector.applied_to(self._blocks[-1]):
                yield selector.select

    def _restore_positions(
        self,
        hidden: Tensor,
        supervised: Sequence[Sequence[int]] | None,
        perturbations: int,
        rows: Rows,
    ) -> Tensor:
        """Return hidden states at the positions of their sequences, [P·m, S, hidden]."""
        length = rows.skipped + rows.ids.shape[1]
        if supervised is None or not (self._can_select or rows.are_packed):
            return nn.functional.pad(hidden, (0, 0, rows.skipped, 0)) if rows.skipped else hidden
        one_each = all(len(positions) == 1 for positions in supervised)
        if one_each and not rows.are_packed:  # unsupervised positions are arbitrary
            return hidden.expand(-1, length, -1)
        read = hidden[:, 0] if self._can_select else hidden[rows.indices(supervised, perturbations)]
        shape = perturbations * len(supervised), length, hidden.shape[2]
        whole = hidden.new_zeros(shape)
        whole[rows.own_indices(supervised, perturbations)] = read
        return whole

    def _known_full_input_parts(self) -> list[nn.Module] | None:
        """Return the cached result of `_find_full_input_parts`."""
        block = self._blocks[-1]

        def names() -> list[str] | None:
            found = self._find_full_input_parts()
            if found is None:
                return None
            return [name for name, part in block.named_modules() if part in found]

        known = self._find_once("full input", names)
        return known if known is None else [block.get_submodule(name) for name in known]

    def _find_full_input_parts(self) -> list[nn.Module] | None:
        """Find the parts of the last block that contain linear layers and need all positions.

        `find_position_wise_modules` has shown that the other parts need only supervised positions.
        This function selects these positions in the last block, and compares the output with the
        output without selection. Equal outputs confirm that hidden states take the expected path
        through the block.

        Returns:
            The parts, or None if selecting positions does not give the right output.
        """
        length = min(PROBE_TOKENS, self._base.context)
        both = [tuple(range(1, 1 + length)), tuple(range(length, 0, -1))]
        rows = Rows.of(self._base, both)
        chosen = rows.indices([(0, length // 2), (length - 1,)], 1)
        selector, block = PositionSelector((2, length), *chosen), self._blocks[-1]
        with self._skipping_blocks(0, len(self._blocks) - 1):
            whole = self._hidden_states(rows)
            try:
                with selector.applied_to(block), _changed_input(block, selector.select):
                    selected = self._hidden_states(rows)
            except _UNSUITABLE:
                return None
        expected = whole[chosen][:, None]
        linear = [part for part in block.children() if any(map(is_linear, part.modules()))]
        covered = {id(part) for part in (*selector.full_input_parts, *self._position_wise)}
        if selected.shape != expected.shape or not covered.issuperset(map(id, linear)):
            return None
        return selector.full_input_parts if differ_by_rounding(selected, expected) else None

    def _packing_is_exact(self) -> bool:
        """Return whether packing sequences into shared rows leaves their hidden states unchanged.

        Some models have blocks of several kinds, so one block of each kind is tried.
        """
        length = min(PROBE_TOKENS, self._base.context)
        begins = 0, length // 2, length // 2 + 1  # the last two share one row
        sequences = [tuple(range(begin, length)) for begin in begins]
        rows = Rows.of(self._base, sequences, packed=True)
        with self._one_block_of_each_kind():
            try:
                packed = self._hidden_states(rows)
            except _UNSUITABLE:
                return False
            return all(
                differ_by_rounding(
                    packed[row, first : first + len(sequence)],
                    self._hidden_states(Rows.of(self._base, [sequence]))[0],
                )
                for sequence, (row, first) in zip(sequences, rows.places, strict=True)
            )

    @contextmanager
    def _repeating_rows(
        self, shape: torch.Size, perturbations: int, trunk: Tensor | None
    ) -> Iterator[None]:
        """Repeat rows and masks for every perturbation, from the first adapted block on.

        Args:
            shape: (m, S) of the token ids.
            perturbations: P.
            trunk: the first adapted block's input for m sequences, in place of its real input.
        """
        sequences, length = shape

        def per_row(value: Any) -> bool:
            return (
                isinstance(value, Tensor)
                and value.ndim >= 2
                and len(value) == sequences
                and (value.shape[1] == length or value.ndim == 4)
            )

        def repeat(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(repeat(part) for part in value)
            return value.repeat(perturbations, *[1] * (value.ndim - 1)) if per_row(value) else value

        def repeat_inputs(
            block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            hidden = args[0] if args else kwargs["hidden_states"]
            if block is self._blocks[self._first_block]:
                hidden = repeat(hidden if trunk is None else trunk)
            if args:
                others = {name: repeat(value) for name, value in kwargs.items()}
                return (hidden, *map(repeat, args[1:])), others
            others = {n: repeat(value) for n, value in kwargs.items() if n != "hidden_states"}
            return (), {"hidden_states": hidden} | others

        handles = [
            block.register_forward_pre_hook(repeat_inputs, with_kwargs=True)
            for block in self._blocks[self._first_block :]
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


@contextmanager
def _changed_input(block: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Apply a function to a block's input hidden states inside the context."""

    def hook(
        _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": change(kwargs["hidden_states"])}

    handle = block.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
