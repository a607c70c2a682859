"""Choice of a way to compute a model's body with the same output as transformers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from enum import Enum
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from samara.client.forward.rows import Rows
from samara.client.forward.self_check import (
    PerturbedPair,
    are_equal,
    difference_of_head,
    perturbed_pair,
    plain_hidden,
    probe_sequences,
    reason_from,
    refusal,
)
from samara.client.forward.supervised import find_position_wise_modules, replace_forward
from samara.client.forward.trunk_cache import Ids, MemoryCache, TrunkCache
from samara.shared.model.layer_selection import is_linear
from samara.shared.model.loading import BaseModel
from samara.shared.model.lora_fa import LoRAFALinear

PROBE_TOKENS = 7
_TOLERANCE, _HALF_PRECISION_TOLERANCE = 1e-4, 0.05
"""Largest accepted difference between two computations of a probe, relative to the largest
value."""
_CHECK_CACHE_BYTES = 2**24
_Found = TypeVar("_Found")


class Way(Enum):
    """Ways to compute a model's body, in the order in which they are tried."""

    BY_BLOCK = "rows are repeated at the first adapted block, and read positions selected"
    WHOLE = "rows are repeated before the model"
    BY_LENGTH = "rows are repeated before the model, and rows of one length run at a time"


class _FirstBlockDoneError(Exception):
    """Exception that ends a pass after the first block."""


class ProvenBody(ABC):
    """A model's body, computed in the first way that reproduces the network's output."""

    ways, remedy = tuple(Way), ""

    _base: BaseModel
    _blocks: nn.ModuleList
    _first_block: int
    _cache: TrunkCache | None
    _outputs_of_block: int

    @abstractmethod
    def _prepare(self, way: Way, packs: bool) -> None:
        """Decide which shortcuts the body takes when it is computed in a given way."""

    @abstractmethod
    def _hidden_states(self, rows: Rows) -> Tensor:
        """Return the output of the model's body for rows, without any shortcut."""

    def _known_way(self, packs: bool) -> Way:
        """Return the way to compute this model, and prepare the body for it.

        The search for the way runs only once per model.
        """
        key = type(self), self._first_block, self._cache is None, self._kinds()
        verdicts = self._base.verdicts
        if key not in verdicts:
            verdicts[key] = self._find_way(packs)
        else:
            self._prepare(verdicts[key], packs)
        way: Way = verdicts[key]
        return way

    def _kinds(self) -> tuple[type, ...]:
        return tuple(type(module) for module in self._base.network.modules())

    def _find_once(self, what: str, find: Callable[[], _Found]) -> _Found:
        """Return a probe's result for this model; the probe runs at the first call only."""
        key, verdicts = (what, type(self), self._kinds()), self._base.verdicts
        if key not in verdicts:
            verdicts[key] = find()
        found: _Found = verdicts[key]
        return found

    def _find_way(self, packs: bool) -> Way:
        """Return the first way in which the body's output equals the network's output.

        Raises:
            ModelError: if there is no such way.
        """
        found: list[Way] = []

        def search() -> str:
            sequences = probe_sequences(self._base)
            expected = [plain_hidden(self._base, sequence) for sequence in sequences]
            if reason := difference_of_head(self._base, expected) or self._cannot(not_a_chain):
                return reason
            pair = perturbed_pair(self._base, sequences[:2], expected[:2])
            for way in self.ways:

                def difference(way: Way = way) -> str:
                    self._prepare(way, packs)
                    return self._difference(sequences, expected, pair)

                if not (reason := reason_from(difference)):
                    found.append(way)
                    break
            return reason

        not_a_chain = reason_from(self._difference_from_a_chain)
        with nullcontext() if not_a_chain else self._one_block_of_each_kind():
            if reason := reason_from(search):
                raise refusal(self._base, reason + self.remedy)
        return found[0]

    def _cannot(self, not_a_chain: str) -> str:
        """Return the reason why no way can work, or an empty text if the ways are worth trying."""
        return ""

    def _difference(
        self, sequences: Sequence[Ids], expected: Sequence[Tensor], pair: PerturbedPair | None
    ) -> str:
        """Return the difference between the outputs of body and network; an empty text if they
        agree.

        Args:
            sequences: sequences of different lengths.
            expected: the network's hidden states of each sequence, computed alone.
            pair: two perturbations of the adapters; None without adapters.
        """
        neighbours = (
            "its output for a text depends on the other texts of the pass, or on their padding"
        )
        if not self._gives(sequences, [expected, expected], None):
            return neighbours
        if not self._gives(sequences[:1], [expected[:1]] * 2, None):
            return neighbours
        read = None
        if self._base.family != "encoder":
            read = [(len(sequence) // 2, len(sequence) - 1) for sequence in sequences]
            if pair is None and not self._gives(sequences, [expected, expected], read):
                return neighbours
        if pair is not None:
            with pair.adapter.using(pair.both):
                if not self._gives(sequences[:2], pair.hidden, read and read[:2]):
                    return (
                        "the adapters of a row also change other rows; set adapter.layers = "
                        "readout, or choose another model"
                    )
        return ""

    def _gives(
        self,
        sequences: Sequence[Ids],
        expected: Sequence[Sequence[Tensor]],
        read: Sequence[Sequence[int]] | None,
    ) -> bool:
        """Return whether the body's hidden states equal expected hidden states up to rounding.

        Args:
            sequences: m token sequences.
            expected: hidden states of each sequence under each of P perturbations.
            read: positions to compare in each sequence; None for all.
        """
        cache = self._cache
        self._cache = None if cache is None else MemoryCache(_CHECK_CACHE_BYTES)
        try:
            hidden = self._run_to_check(sequences, len(expected), read)
        finally:
            self._cache = cache
        rows = iter(hidden)
        for of_perturbation in expected:
            for index, whole in enumerate(of_perturbation):
                places = list(range(len(whole)) if read is None else read[index])
                if not are_equal(self._base, next(rows)[places], whole[places]):
                    return False
        return True

    @abstractmethod
    def _run_to_check(
        self,
        sequences: Sequence[Ids],
        perturbations: int,
        read: Sequence[Sequence[int]] | None,
    ) -> Tensor:
        """Return the body's hidden states for `_gives`, [P·m, S, hidden]."""

    def _find_position_wise(self) -> list[nn.Module]:
        """Return the last block's parts that need only supervised positions.

        The search for these parts runs only once per model.
        """

        def run() -> Tensor:
            with self._skipping_blocks(0, len(self._blocks) - 1):
                return self._hidden_states(self._probe())

        block, verdicts = self._blocks[-1], self._base.verdicts
        key = "position-wise", tuple(map(type, block.modules()))
        if key not in verdicts:
            found = find_position_wise_modules(block, is_linear, run)
            verdicts[key] = [name for name, part in block.named_modules() if part in found]
        return [block.get_submodule(name) for name in verdicts[key]]

    def _count_block_outputs(self) -> int:
        """Return the length of the tuple that a block returns; 0 if it returns a tensor."""
        count = 0

        def record(_: nn.Module, __: Any, output: Any) -> None:
            nonlocal count
            count = len(output) if isinstance(output, tuple) else 0
            raise _FirstBlockDoneError

        handle = self._blocks[0].register_forward_hook(record)
        try:
            with suppress(_FirstBlockDoneError):
                self._hidden_states(self._probe())
        finally:
            handle.remove()
        return count

    def _as_block_output(self, hidden: Tensor) -> Any:
        """Return hidden states in the form that blocks return, with None for further outputs."""
        others = [None] * (self._outputs_of_block - 1)
        return (hidden, *others) if self._outputs_of_block else hidden

    def _difference_from_a_chain(self) -> str:
        """Return the difference of the blocks from a chain; an empty text if they are a chain.

        In a chain, every block runs once, on the output of the previous block.
        """
        self._outputs_of_block = self._count_block_outputs()
        ran: list[int] = []
        given: list[Tensor] = []

        def marking(index: int) -> Callable[..., Any]:
            def mark(*args: Any, **kwargs: Any) -> Any:
                hidden: Tensor = args[0] if args else kwargs["hidden_states"]
                if not given or torch.equal(hidden, given[-1]):
                    ran.append(index)
                given.append(torch.full_like(hidden, 1 + index))
                return self._as_block_output(given[-1])

            return mark

        with ExitStack() as stack:
            for index, block in enumerate(self._blocks):
                stack.enter_context(replace_forward(block, marking(index)))
            self._hidden_states(self._probe())
        if ran == list(range(len(self._blocks))) and len(given) == len(ran):
            return ""
        return "its blocks run more than once, or the model computes something between them"

    @contextmanager
    def _one_block_of_each_kind(self) -> Iterator[None]:
        """Skip blocks inside the context, so that only one block of each kind runs.

        The first adapted block and the last block always run.
        """
        kinds = [_kind(block) for block in self._blocks]
        kept = self._first_block, len(self._blocks) - 1
        with ExitStack() as stack:
            for index, kind in enumerate(kinds):
                if kind in kinds[:index] and index not in kept:
                    stack.enter_context(self._skipping_blocks(index, index + 1))
            yield

    def _probe(self) -> Rows:
        return Rows.of(self._base, [tuple(range(1, 1 + min(PROBE_TOKENS, self._base.context)))])

    @contextmanager
    def _skipping_blocks(self, start: int, stop: int) -> Iterator[None]:
        """Make blocks start … stop − 1 return their input unchanged inside the context."""

        def identity(*args: Any, **kwargs: Any) -> Any:
            hidden = args[0] if args else kwargs["hidden_states"]
            return self._as_block_output(hidden)

        with ExitStack() as stack:
            for block in self._blocks[start:stop]:
                stack.enter_context(replace_forward(block, identity))
            yield


def _kind(block: nn.Module) -> list[object]:
    """Return the types and settings of a block's modules, which define the block's kind."""
    return [
        (
            type(module),
            [(n, v) for n, v in vars(module).items() if isinstance(v, str | bool | None)],
        )
        for module in block.modules()
    ]


def differ_by_rounding(one: Tensor, other: Tensor) -> bool:
    """Return whether the difference of two results is small enough to come from rounding."""
    error = (one - other).abs().max() / other.abs().max()
    tolerance = _TOLERANCE if one.dtype == torch.float32 else _HALF_PRECISION_TOLERANCE
    return float(error) <= tolerance


def has_adapters(parts: Sequence[nn.Module] | None) -> bool:
    """Return whether any of these parts has adapters; True if the parts are unknown (None)."""
    if parts is None:
        return True
    return any(isinstance(module, LoRAFALinear) for part in parts for module in part.modules())
