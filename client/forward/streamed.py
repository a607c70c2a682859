"""The forward engine for streamed blocks, which computes all passes of a step block by block.

ZO2 (Wang et al., section 4) computes both forward passes of a perturbation with a block while the
block is loaded. Here a loaded block computes all passes of a step: every perturbation and
micro-batch, 2·q·B rows. A pass is divided into stages: the body's work before its blocks, each
block, and the work after the blocks. All passes finish a stage before any pass begins the next
stage. The stages run the same operations on the same shapes as an undivided pass, so the scores
have the same bits.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samara.client.forward.body import PerturbedBody
from samara.client.forward.grouping import Schedule
from samara.client.forward.proven_body import Way
from samara.client.forward.resident import SINGLE_PASS, PassBatch, ResidentForward
from samara.client.forward.rows import Rows
from samara.client.forward.supervised import replace_forward
from samara.client.forward.trunk_cache import Ids, TrunkCache
from samara.client.forward.turns import forward_pass
from samara.shared.errors import TaskError
from samara.shared.model.loading import BaseModel
from samara.shared.model.lora_fa import Adapter, ForwardPass
from samara.shared.model.perturbations import PerturbedAdapters
from samara.shared.model.readout import Readout
from samara.shared.model.scorers import GenerationScorer, Prompt, Scorer

BEFORE_BLOCKS = -1
"""Number of the stage before the blocks. Block i is stage i. The last stage follows the blocks."""
HIDDEN_STATES_BYTES = 128 * 2**20
"""Maximum total size of the hidden states of passes that are computed together, in bytes."""

Result = TypeVar("Result")
StagedPass = Generator[int, None, Result]
"""A generator that computes a pass in stages.

It yields the number of its next stage, computes that stage when resumed, and finally returns the
result of the pass.
"""
StageContext = Callable[[int], AbstractContextManager[Callable[[int], None]]]
"""A function that returns the context of a stage.

The context provides a function, which is called with the index of a pass before that pass is
resumed.
"""


class BlockwiseParameters(Protocol):
    """Parameters that are perturbed in place, one stage of the model at a time."""

    def at_stage(self, stage: int) -> AbstractContextManager[Callable[[int], None]]:
        """Prepare the parameters of a stage inside the context.

        The context provides a function that applies the perturbation with a given index.
        """


class StreamedBody(PerturbedBody):
    """A body whose forward passes are divided into stages."""

    ways = (Way.BY_BLOCK,)
    remedy = "; it cannot be streamed, so set model.stream = off"

    def _cannot(self, not_a_chain: str) -> str:
        return not_a_chain

    def _run_to_check(
        self,
        sequences: Sequence[Ids],
        perturbations: int,
        read: Sequence[Sequence[int]] | None,
    ) -> Tensor:
        for ids in self.uncached(sequences):
            _run_through(self.fill_cache_in_stages(ids))
        return _run_through(self.forward_in_stages(sequences, perturbations, read))

    def forward_in_stages(
        self,
        sequences: Sequence[Ids],
        perturbations: int = 1,
        supervised: Sequence[Sequence[int]] | None = None,
        pack: bool = False,
    ) -> StagedPass[Tensor]:
        """Return a pass in stages that computes the result of `PerturbedBody.__call__`."""
        yield BEFORE_BLOCKS
        rows = self._rows(sequences, supervised, pack)
        trunk, first = None, 0
        if (cache := self._cache) is not None:
            trunk = rows.arrange(self._trunk_output(sequence, cache) for sequence in sequences)
            first = self._first_block
        early = self._perturbations_before_last(perturbations, supervised)
        calls = self._record_block_calls(rows, early, trunk)
        hidden = calls[first][0]
        last = len(self._blocks) - 1
        for index in range(first, last + 1):
            yield index
            if first < index == self._first_block:
                hidden = hidden.repeat(early, 1, 1)
            with ExitStack() as stack:
                if index == self._first_block:
                    stack.enter_context(self._sharing_before_adapters(early, rows.ids))
                if supervised is not None and index == last:
                    select = stack.enter_context(
                        self._last_block_at(supervised, perturbations, rows)
                    )
                    hidden = select(hidden)
                hidden = self._run_block(hidden, calls[index][1])
        yield last + 1
        hidden = self._run_after_blocks(rows, hidden)
        return self._restore_positions(hidden, supervised, perturbations, rows)

    def fill_cache_in_stages(self, sequence: Ids) -> StagedPass[None]:
        """Return a pass in stages that puts the trunk's output for one sequence into the cache."""
        assert self._cache is not None
        yield BEFORE_BLOCKS
        calls = self._record_block_calls(Rows.of(self._base, [sequence]), 1, None)
        hidden = calls[0][0]
        for index in range(self._first_block):
            yield index
            hidden = self._run_block(hidden, calls[index][1])
        self._cache.put(sequence, hidden[0].clone())

    def hidden_states_bytes(self, sequences: Sequence[Ids], perturbations: int) -> int:
        """Return the size in bytes of a pass's hidden states between two blocks."""
        network = self._base.network
        tokens = perturbations * len(sequences) * max(map(len, sequences))
        return int(tokens * network.config.get_text_config().hidden_size * network.dtype.itemsize)

    def uncached(self, sequences: Sequence[Ids]) -> list[Ids]:
        """Return the sequences missing from the cache, each once; empty without a cache."""
        cache = self._cache
        if cache is None:
            return []
        return [ids for ids in dict.fromkeys(sequences) if cache.get(ids) is None]

    def _record_block_calls(
        self, rows: Rows, perturbations: int, trunk: Tensor | None
    ) -> list[tuple[Tensor, Callable[[Tensor], Any]]]:
        """Record the calls of all blocks in a run of the body whose blocks return their input.

        Returns:
            For each block, its input hidden states, and a function that calls the block with other
            hidden states.
        """
        calls: list[tuple[Tensor, Callable[[Tensor], Any]]] = []

        def recording(index: int) -> Callable[..., Any]:
            forward = self._blocks[index].forward

            def record(*args: Any, **kwargs: Any) -> Any:
                def call(hidden: Tensor) -> Any:
                    if args:
                        return forward(hidden, *args[1:], **kwargs)
                    return forward(**kwargs | {"hidden_states": hidden})

                hidden: Tensor = args[0] if args else kwargs["hidden_states"]
                calls.append((hidden, call))
                return self._as_block_output(hidden)

            return record

        with ExitStack() as stack:
            for index, block in enumerate(self._blocks):
                stack.enter_context(replace_forward(block, recording(index)))
            stack.enter_context(self._repeating_rows(rows.ids.shape, perturbations, trunk))
            self._hidden_states(rows)
        return calls

    @staticmethod
    def _run_block(hidden: Tensor, call: Callable[[Tensor], Any]) -> Tensor:
        output = call(hidden)
        result: Tensor = output[0] if isinstance(output, tuple) else output
        return result

    def _run_after_blocks(self, rows: Rows, hidden: Tensor) -> Tensor:
        """Run the part of the body after its last block, given the output of that block."""

        def give(*args: Any, **kwargs: Any) -> Any:
            return self._as_block_output(hidden)

        with (
            self._skipping_blocks(0, len(self._blocks) - 1),
            replace_forward(self._blocks[-1], give),
        ):
            return self._hidden_states(rows)


class StreamedForward(ResidentForward):
    """A forward engine, which scores prompts under perturbations block by block.

    Args:
        adapter: adapters in the model.
        scorer: scorer of the model's family.
        body: body of the model.
        parameters: parameters that are perturbed in place, in a separate pass per perturbation;
            None without such parameters.
        readout: as for `ResidentForward`.
    """

    def __init__(
        self,
        adapter: Adapter,
        scorer: Scorer,
        body: StreamedBody,
        parameters: BlockwiseParameters | None = None,
        readout: Readout | None = None,
    ) -> None:
        super().__init__(adapter, scorer, body, readout)
        self._staged_body, self._parameters = body, parameters

    def scores(
        self,
        perturbations: PerturbedAdapters,
        prompts: Sequence[Prompt],
        schedule: Schedule = SINGLE_PASS,
        whole: bool = False,
    ) -> NDArray[np.float32]:
        """Return the scores of every prompt under every perturbation; see `ResidentForward`.

        With parameters perturbed in place, the grouping is always `sequential`.
        """
        if self._parameters is not None:
            schedule = replace(schedule, grouping="sequential")
        return super().scores(perturbations, prompts, schedule, whole)

    def decode_answers(
        self, perturbation: PerturbedAdapters, prompts: Sequence[Prompt], micro_batch: int = 0
    ) -> list[str]:
        """Decode the model's answers greedily; see `ResidentForward`.

        Raises:
            TaskError: if parameters are perturbed in place, or the task is not a generation task.
        """
        if perturbation.queries and self._parameters is not None:
            raise TaskError(
                "with streamed blocks, the space full is too slow for training on decoded "
                "answers, because every token passes through all blocks; set objective = "
                "likelihood, or model.stream = off"
            )
        return super().decode_answers(perturbation, prompts, micro_batch)

    @torch.inference_mode()
    def _decode(
        self,
        scorer: GenerationScorer,
        perturbation: PerturbedAdapters,
        sequences: Sequence[Ids],
        size: int,
    ) -> list[list[int]]:
        """Return the most likely tokens after each sequence.

        For every new token, all sequences share one load of each block, and earlier tokens are
        computed again. Transferring a block takes longer than this computation.
        """
        by_length = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
        written: list[list[int]] = [[] for _ in sequences]
        for start in range(0, len(sequences), size):
            unfinished = by_length[start : start + size]
            while unfinished:
                given = [sequences[index] + tuple(written[index]) for index in unfinished]
                last = [(len(sequence) - 1,) for sequence in given]
                self.passes += len(given)
                with forward_pass(), self._adapter.using(perturbation):
                    hidden = self._body(given, 1, last, use_cache=False)
                    ends = torch.tensor(last)[:, 0]
                    tokens = scorer.next_tokens(hidden[torch.arange(len(given)), ends])
                for index, token in zip(unfinished, tokens, strict=True):
                    written[index].append(token)
                unfinished = [i for i in unfinished if not scorer.answer(written[i])[1]]
        return written

    def _run_passes(self, batches: Sequence[PassBatch]) -> Iterator[NDArray[np.float32]]:
        if self._parameters is not None:
            yield from self._run_perturbing_in_place(self._parameters, batches)
            return
        for group in self._split_by_memory(batches):
            with forward_pass():
                self._fill_cache(group)
                with torch.inference_mode():
                    scores = run_in_lockstep(list(map(self._staged_pass, group)), _no_context)
                results = [result.float().cpu().numpy() for result in scores]
            yield from results

    @torch.inference_mode()
    def _run_perturbing_in_place(
        self, parameters: BlockwiseParameters, batches: Sequence[PassBatch]
    ) -> list[NDArray[np.float32]]:
        """Return the scores of passes that run ordered by perturbation within each stage.

        In this order, each perturbation changes a stage's parameters exactly once. In any other
        order, rounding errors of repeated changes could add up.
        """
        applied = [int(batch.perturbation_indices[0]) for batch in batches]
        distinct = list(dict.fromkeys(applied))
        order = sorted(range(len(batches)), key=lambda i: distinct.index(applied[i]))

        @contextmanager
        def perturbed(stage: int) -> Iterator[Callable[[int], None]]:
            with parameters.at_stage(stage) as apply:
                yield lambda index: apply(applied[order[index]])

        scores = run_in_lockstep([self._staged_pass(batches[i]) for i in order], perturbed)
        return [scores[order.index(i)].float().cpu().numpy() for i in range(len(batches))]

    def _staged_pass(self, batch: PassBatch) -> StagedPass[Tensor]:
        forward_pass = ForwardPass(batch.perturbations)
        return _run_inside(self._score_in_stages(batch), lambda: self._adapter.resume(forward_pass))

    def _score_in_stages(self, batch: PassBatch) -> StagedPass[Tensor]:
        sequences = [sequence for prompt in batch.prompts for sequence in prompt.sequences]
        supervised = [positions for prompt in batch.prompts for positions in prompt.supervised]
        hidden = yield from self._staged_body.forward_in_stages(
            sequences,
            batch.perturbations.count,
            supervised if all(supervised) else None,
            pack=self._may_pack(batch.perturbations),
        )
        return self._score_hidden(hidden, batch.perturbations, batch.prompts, batch.whole)

    def _fill_cache(self, batches: Sequence[PassBatch]) -> None:
        """Compute the trunk's output of every sequence missing from the cache, stage by stage."""
        sequences = [
            ids for batch in batches for prompt in batch.prompts for ids in prompt.sequences
        ]
        body = self._staged_body
        with torch.inference_mode():
            passes = [body.fill_cache_in_stages(ids) for ids in body.uncached(sequences)]
            run_in_lockstep(passes, _no_context)

    def _split_by_memory(self, batches: Sequence[PassBatch]) -> Iterator[Sequence[PassBatch]]:
        """Split passes into groups whose hidden states fit into `HIDDEN_STATES_BYTES` together."""
        group: list[PassBatch] = []
        total = 0
        for batch in batches:
            sequences = [ids for prompt in batch.prompts for ids in prompt.sequences]
            size = self._staged_body.hidden_states_bytes(sequences, batch.perturbations.count)
            if group and total + size > HIDDEN_STATES_BYTES:
                yield group
                group, total = [], 0
            group.append(batch)
            total += size
        if group:
            yield group


def make_forward_engine(
    base: BaseModel,
    adapter: Adapter,
    scorer: Scorer,
    streamed: bool,
    cache: TrunkCache | None = None,
    parameters: BlockwiseParameters | None = None,
    readout: Readout | None = None,
    prefix: Ids = (),
) -> ResidentForward:
    """Return the forward engine of a model.

    Args:
        base: the model.
        adapter: adapters in the model.
        scorer: scorer of the model's family.
        streamed: whether the model's blocks are streamed.
        cache: cache of the trunk's outputs.
        parameters: as for `StreamedForward`.
        readout: as for `ResidentForward`.
        prefix: as for `PerturbedBody`; it must contain no trained numbers.
    """
    first = adapter.first_block
    packs = isinstance(scorer, GenerationScorer)
    if not streamed:
        body = PerturbedBody(base, first, cache, packs, prefix)
        return ResidentForward(adapter, scorer, body, readout)
    streamed_body = StreamedBody(base, first, cache, packs, prefix)
    return StreamedForward(adapter, scorer, streamed_body, parameters, readout)


def run_in_lockstep(
    passes: Sequence[StagedPass[Result]], stage_context: StageContext
) -> list[Result]:
    """Run passes stage by stage: all passes finish a stage before any pass begins the next.

    Args:
        passes: passes, in the order in which they run within a stage.
        stage_context: function that returns the context of a stage.

    Returns:
        The results of the passes.
    """
    results: dict[int, Result] = {}
    next_stages = {index: next(staged) for index, staged in enumerate(passes)}
    while next_stages:
        stage = min(next_stages.values())
        with stage_context(stage) as prepare:
            for index in [index for index, at in next_stages.items() if at == stage]:
                prepare(index)
                try:
                    next_stages[index] = next(passes[index])
                except StopIteration as end:
                    results[index] = end.value
                    del next_stages[index]
    return [results[index] for index in range(len(passes))]


def _run_through(staged: StagedPass[Result]) -> Result:
    """Run all stages of a pass, and return its result."""
    while True:
        try:
            next(staged)
        except StopIteration as end:
            result: Result = end.value
            return result


def _run_inside(
    staged: StagedPass[Result], context: Callable[[], AbstractContextManager[None]]
) -> StagedPass[Result]:
    """Return a pass in stages that enters a context each time it is resumed."""
    while True:
        with context():
            try:
                stage = next(staged)
            except StopIteration as end:
                result: Result = end.value
                return result
        yield stage


@contextmanager
def _no_context(stage: int) -> Iterator[Callable[[int], None]]:
    yield lambda index: None
