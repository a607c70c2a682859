"""Passes over a model whose blocks come one after the other: each block serves all passes at once.

ZO2 (Wang et al., section 4) sends both forwards of a perturbation through a block while it is
there. Here these are all passes of a step: every point and micro-batch of it, 2·q·B rows. A pass is
taken apart into what the body does before its blocks, the blocks, and what it does behind them; it
stops before each of these parts, and whoever is at the same stop goes on together. The parts run
the same operations on the same shapes as a pass in one go, so the scores are the same bits.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client.forward.body import PerturbedBody
from client.forward.grouping import Schedule
from client.forward.resident import SINGLE_PASS, ResidentForward, Share
from client.forward.supervised import replaced
from client.forward.trunk_cache import Ids, TrunkCache
from shared.errors import TaskError
from shared.model.loading import BaseModel
from shared.model.lora_fa import Adapter, ForwardPass, PerturbedAdapters
from shared.model.scorers import Prompt, Scorer

BEFORE = -1
"""The stop before what a body does before its blocks; block i is stop i, the rest comes last."""
HELD_BYTES = 128 * 2**20
"""Hidden states of passes that go through the blocks together."""

Result = TypeVar("Result")
Stops = Generator[int, None, Result]
"""A pass: gives the stop that it is at, goes on when it is resumed, returns its result."""
Visit = Callable[[int], AbstractContextManager[Callable[[int], None]]]
"""Is called with a stop, gives what is called with a pass's index before its turn there."""


class Standing(Protocol):
    """Parameters that move from point to point, a part of the model at a time."""

    def at_stage(self, stop: int) -> AbstractContextManager[Callable[[int], None]]:
        """Be at a stop: what is handed out has the part stand at one of the points."""


class StreamedBody(PerturbedBody):
    """A body whose passes stop before each block."""

    def in_stops(
        self,
        sequences: Sequence[Ids],
        perturbations: int = 1,
        supervised: Sequence[Sequence[int]] | None = None,
    ) -> Stops[Tensor]:
        """As a call of the body, with the same arguments and the same result."""
        yield BEFORE
        ids, mask = self._padded(sequences)
        trunk, first = None, 0
        if self._cache is not None:
            outputs = [self._trunk(sequence, self._cache) for sequence in sequences]
            trunk = torch.nn.utils.rnn.pad_sequence(outputs, batch_first=True)
            first = self._first_block
        early = self._points_before_last(perturbations, supervised)
        calls = self._calls_of_blocks(ids, mask, early, trunk)
        hidden = calls[first][0]
        last = len(self._blocks) - 1
        for index in range(first, last + 1):
            yield index
            if first < index == self._first_block:
                hidden = hidden.repeat(early, 1, 1)
            with ExitStack() as stack:
                if index == self._first_block:
                    stack.enter_context(self._alike_once(early, ids))
                if supervised is not None and index == last:
                    enter = stack.enter_context(self._last_block_at(supervised, perturbations, ids))
                    hidden = enter(hidden)
                hidden = self._through(index, hidden, calls[index][1])
        yield last + 1
        hidden = self._behind_blocks(ids, mask, hidden)
        return self._uncut(hidden, supervised, perturbations, ids)

    def trunk_in_stops(self, sequence: Ids) -> Stops[None]:
        """Have the cache know what the blocks below the adapters give for one sequence, alone."""
        assert self._cache is not None
        yield BEFORE
        ids, mask = self._padded([sequence])
        calls = self._calls_of_blocks(ids, mask, 1, None)
        hidden = calls[0][0]
        for index in range(self._first_block):
            yield index
            hidden = self._through(index, hidden, calls[index][1])
        self._cache.put(sequence, hidden[0].clone())

    def bytes_of(self, sequences: Sequence[Ids], perturbations: int) -> int:
        """Of the hidden states of a pass."""
        network = self._base.network
        tokens = perturbations * len(sequences) * max(map(len, sequences))
        return int(tokens * network.config.hidden_size * network.dtype.itemsize)

    def unknown(self, sequences: Sequence[Ids]) -> list[Ids]:
        """Sequences that the trunk's cache does not know, each once; none without a cache."""
        cache = self._cache
        if cache is None:
            return []
        return [ids for ids in dict.fromkeys(sequences) if cache.get(ids) is None]

    def _calls_of_blocks(
        self, ids: Tensor, mask: Tensor, perturbations: int, trunk: Tensor | None
    ) -> list[tuple[Tensor, Callable[[Tensor], Any]]]:
        """Of each block: the hidden states it would be given if none before it did anything, and
        its call with others."""
        calls: list[tuple[Tensor, Callable[[Tensor], Any]]] = []

        def noting(index: int) -> Callable[..., Any]:
            forward = self._blocks[index].forward

            def note(*args: Any, **kwargs: Any) -> Any:
                def call(hidden: Tensor) -> Any:
                    if args:
                        return forward(hidden, *args[1:], **kwargs)
                    return forward(**kwargs | {"hidden_states": hidden})

                hidden: Tensor = args[0] if args else kwargs["hidden_states"]
                calls.append((hidden, call))
                return (hidden,) if self._block_returns_tuple else hidden

            return note

        with ExitStack() as stack:
            for index, block in enumerate(self._blocks):
                stack.enter_context(replaced(block, noting(index)))
            stack.enter_context(self._widening(ids.shape, perturbations, trunk))
            self._base.body(input_ids=ids, attention_mask=mask)
        return calls

    def _through(self, index: int, hidden: Tensor, call: Callable[[Tensor], Any]) -> Tensor:
        output = call(hidden)
        result: Tensor = output[0] if isinstance(output, tuple) else output
        return result

    def _behind_blocks(self, ids: Tensor, mask: Tensor, hidden: Tensor) -> Tensor:
        """What the body makes of its last block's output."""

        def give(*args: Any, **kwargs: Any) -> Any:
            return (hidden,) if self._block_returns_tuple else hidden

        with self._passing_through(0, len(self._blocks) - 1), replaced(self._blocks[-1], give):
            result: Tensor = self._base.body(input_ids=ids, attention_mask=mask).last_hidden_state
        return result


class StreamedForward(ResidentForward):
    """Scores prompts at points, block by block.

    Args:
        adapter: the adapters in the model.
        scorer: of the model's family.
        body: of the same model.
        standing: moves the parameters, where points are made of them; a pass is then of one point.
    """

    def __init__(
        self,
        adapter: Adapter,
        scorer: Scorer,
        body: StreamedBody,
        standing: Standing | None = None,
    ) -> None:
        super().__init__(adapter, scorer, body)
        self._stopping, self._standing = body, standing

    def scores(
        self,
        perturbations: PerturbedAdapters,
        prompts: Sequence[Prompt],
        schedule: Schedule = SINGLE_PASS,
    ) -> NDArray[np.float32]:
        """As the resident engine's; points that are made of parameters are passes of their own."""
        if self._standing is not None:
            schedule = replace(schedule, grouping="sequential")
        return super().scores(perturbations, prompts, schedule)

    def decode_answers(
        self, perturbation: PerturbedAdapters, prompts: Sequence[Prompt], micro_batch: int = 0
    ) -> list[str]:
        """As the resident engine's, but only where the parameters stand still.

        Raises:
            TaskError: if the point is made of parameters that move, or the task is of another kind.
        """
        if perturbation.queries and self._standing is not None:
            raise TaskError(
                "answers are decoded token by token, each through all blocks: too slow to train "
                "by in the space full with streamed blocks; set objective = likelihood, or "
                "model.stream = off"
            )
        return super().decode_answers(perturbation, prompts, micro_batch)

    def _carried_out(self, passes: Sequence[Share]) -> Iterator[NDArray[np.float32]]:
        if self._standing is not None:
            yield from self._point_by_point(passes)
            return
        for some in self._held_together(passes):
            self._fill_trunk(some)
            with torch.inference_mode():
                scores = side_by_side(list(map(self._in_stops, some)), _nothing_to_move)
            yield from (one.float().cpu().numpy() for one in scores)

    @torch.inference_mode()
    def _point_by_point(self, passes: Sequence[Share]) -> list[NDArray[np.float32]]:
        """Scores of all passes, of which those of one point take turns one after the other.

        So a part of the model moves to every point once, also where that leaves rounding behind.
        """
        assert self._standing is not None
        perturbations = list(dict.fromkeys(int(share.places[0]) for share in passes))
        order = sorted(
            range(len(passes)), key=lambda i: perturbations.index(int(passes[i].places[0]))
        )
        visit = _at_points(self._standing, [int(passes[i].places[0]) for i in order])
        scores = side_by_side([self._in_stops(passes[i]) for i in order], visit)
        return [scores[order.index(i)].float().cpu().numpy() for i in range(len(passes))]

    def _in_stops(self, share: Share) -> Stops[Tensor]:
        one = ForwardPass(share.perturbations)
        return _resumed(self._scored_in_stops(share), lambda: self._adapter.resume(one))

    def _scored_in_stops(self, share: Share) -> Stops[Tensor]:
        sequences = [sequence for prompt in share.prompts for sequence in prompt.sequences]
        supervised = [places for prompt in share.prompts for places in prompt.supervised]
        hidden = yield from self._stopping.in_stops(
            sequences, share.perturbations.count, supervised if all(supervised) else None
        )
        return self._scored(hidden, share.perturbations, share.prompts)

    def _fill_trunk(self, passes: Sequence[Share]) -> None:
        """What the layers below the adapters give, for all sequences that lack it, in one go."""
        sequences = [
            ids for share in passes for prompt in share.prompts for ids in prompt.sequences
        ]
        unknown = self._stopping.unknown(sequences)
        with torch.inference_mode():
            side_by_side([self._stopping.trunk_in_stops(ids) for ids in unknown], _nothing_to_move)

    def _held_together(self, passes: Sequence[Share]) -> Iterator[Sequence[Share]]:
        """Passes whose hidden states may be held at once."""
        some: list[Share] = []
        held = 0
        for share in passes:
            sequences = [ids for prompt in share.prompts for ids in prompt.sequences]
            size = self._stopping.bytes_of(sequences, share.perturbations.count)
            if some and held + size > HELD_BYTES:
                yield some
                some, held = [], 0
            some.append(share)
            held += size
        if some:
            yield some


def make_forward_engine(
    base: BaseModel,
    adapter: Adapter,
    scorer: Scorer,
    streamed: bool,
    cache: TrunkCache | None = None,
    standing: Standing | None = None,
) -> ResidentForward:
    """The engine of a model.

    Args:
        base: the model.
        adapter: the adapters in it.
        scorer: of its family.
        streamed: whether its blocks are.
        cache: for what the blocks below the adapters give.
        standing: as for `StreamedForward`.
    """
    first = adapter.first_block
    if not streamed:
        return ResidentForward(adapter, scorer, PerturbedBody(base, first, cache))
    return StreamedForward(adapter, scorer, StreamedBody(base, first, cache), standing)


def side_by_side(passes: Sequence[Stops[Result]], visit: Visit) -> list[Result]:
    """Carry out passes, all that are at the lowest stop before any goes on from there.

    Args:
        passes: in the order in which they take turns at a stop.
        visit: around every stop.

    Returns:
        What they return.
    """
    results: dict[int, Result] = {}
    waiting = {index: next(one) for index, one in enumerate(passes)}
    while waiting:
        stop = min(waiting.values())
        with visit(stop) as turn:
            for index in [index for index, at in waiting.items() if at == stop]:
                turn(index)
                try:
                    waiting[index] = next(passes[index])
                except StopIteration as end:
                    results[index] = end.value
                    del waiting[index]
    return [results[index] for index in range(len(passes))]


def _resumed(
    stops: Stops[Result], within: Callable[[], AbstractContextManager[None]]
) -> Stops[Result]:
    """The same pass, which is inside a context whenever it goes on."""
    while True:
        with within():
            try:
                stop = next(stops)
            except StopIteration as end:
                result: Result = end.value
                return result
        yield stop


def _at_points(standing: Standing, perturbations: Sequence[int]) -> Visit:
    """Visits in which every pass finds the part of the model at its point."""

    @contextmanager
    def visit(stop: int) -> Iterator[Callable[[int], None]]:
        with standing.at_stage(stop) as stand:
            yield lambda index: stand(perturbations[index])

    return visit


@contextmanager
def _nothing_to_move(stop: int) -> Iterator[Callable[[int], None]]:
    yield lambda index: None
