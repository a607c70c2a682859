"""In-context learning, a baseline whose prompts begin with solved examples; nothing is trained.

This is the baseline of MeZO (appendix E.4): 32 demonstrations, or as many as fit the model's
context.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from samara.client.forward.grouping import Schedule
from samara.client.forward.streamed import make_forward_engine
from samara.client.tuning.tuning_setup import ScoresAndAnswers, TaskSplit, TuningSetup
from samara.shared.errors import ModelError, TaskError
from samara.shared.model.lora_fa import empty_adapter
from samara.shared.model.prompt_frame import first_tokens, form_of
from samara.shared.model.scorers import Prompt
from samara.shared.model.word_tokens import Ids
from samara.shared.protocol.directions import batch_order
from samara.shared.tasks.demonstrations import demonstration
from samara.shared.tasks.kinds import CHAT, GenerationTask

PROMPTS_IN_PASS = 4
"""Number of prompts in a pass. Each prompt needs a copy of the demonstrations' keys and values."""


class InContext:
    """A baseline that puts demonstrations from the training split before a causal LM's prompts.

    The demonstrations are the first examples of one random order. Each prompt gets as many of them
    as fit the model's context together with the prompt. The prompt itself is not shortened.

    Args:
        setup: setup with a causal LM.
        demonstrations: maximum number of demonstrations.

    Raises:
        ModelError: if the model is not a causal LM.
        TaskError: if the prompt form is a chat.
    """

    def __init__(self, setup: TuningSetup, demonstrations: int) -> None:
        if setup.base.family != "causal":
            raise ModelError(
                f"{setup.base.folder}: in-context learning needs a causal LM, but this is a "
                f"{setup.base.family} model; choose another optimizer or model"
            )
        if form_of(setup.task) == CHAT:
            raise TaskError(
                f"task {setup.task.name} has the form of a chat, but demonstrations need a plain "
                "text; set form to plain, or choose another optimizer"
            )
        self._setup = setup
        train = setup.splits["train"].examples
        order = batch_order(setup.root, 0, 0, len(train))[:demonstrations]
        tokenizer = setup.base.tokenizer
        self._demonstrations: list[Ids] = [
            tuple(
                tokenizer(demonstration(setup.task, train[i]), add_special_tokens=False).input_ids
            )
            for i in order
        ]
        self._ends = np.cumsum([len(ids) for ids in self._demonstrations])
        self._start = first_tokens(setup.base, form_of(setup.task))
        answer = setup.task.tokens if isinstance(setup.task, GenerationTask) else 0
        self._limit = setup.base.batch_context - answer

    def scores(self, split: TaskSplit) -> ScoresAndAnswers:
        """Return the base model's scores and decoded answers of a split, after demonstrations.

        A whole model in memory that writes no answers reads demonstrations shared by several
        prompts only once, if it can continue a prefix.
        """
        setup = self._setup
        if setup.stream is None and not setup.base.depth and not split.open_prompts:
            return self._scores_behind(split), []
        extended = replace(
            split,
            prompts=tuple(map(self.extend, split.prompts)),
            open_prompts=tuple(map(self.extend, split.open_prompts)),
        )
        return setup.base_scores(extended)

    def _scores_behind(self, split: TaskSplit) -> NDArray[np.float32]:
        """Return the scores of a split's prompts, float32 [n, width].

        Demonstrations shared by several prompts are read only once.
        """
        setup = self._setup
        by_prefix: dict[Ids, list[int]] = {}
        for index, prompt in enumerate(split.prompts):
            by_prefix.setdefault(self.prefix(prompt), []).append(index)
        width = setup.scorer.width(split.prompts)
        scores = np.full((len(split.prompts), width), -np.inf, np.float32)
        adapter, no_adapters = empty_adapter()
        schedule = Schedule(micro_batch=PROMPTS_IN_PASS)
        for prefix, chosen in by_prefix.items():
            prompts = [self.extend(split.prompts[index]) for index in chosen]
            engine = make_forward_engine(setup.base, adapter, setup.scorer, False, prefix=prefix)
            (own,) = engine.scores(no_adapters, prompts, schedule, whole=True)
            scores[chosen, : own.shape[1]] = own
        return scores

    def prefix(self, prompt: Prompt) -> Ids:
        """Return the tokens that precede a prompt's tokens, with demonstrations included."""
        start = self._start if self._begins(prompt.sequences[0]) else ()
        return (*start, *self._tokens(prompt))

    def _tokens(self, prompt: Prompt) -> Ids:
        """Return the tokens of the demonstrations that fit before a prompt."""
        return tuple(token for ids in self._demonstrations[: self.count(prompt)] for token in ids)

    def count(self, prompt: Prompt) -> int:
        """Return the number of demonstrations that fit before a prompt."""
        free = self._limit - max(map(len, prompt.sequences))
        return int(np.searchsorted(self._ends, free, side="right"))

    def extend(self, prompt: Prompt) -> Prompt:
        """Return a prompt preceded by as many demonstrations as fit."""
        tokens = self._tokens(prompt)
        return Prompt(
            tuple(self._insert(sequence, tokens) for sequence in prompt.sequences),
            tuple(
                tuple(position + len(tokens) for position in positions)
                for positions in prompt.supervised
            ),
            prompt.targets,
        )

    def _insert(self, sequence: Ids, tokens: Sequence[int]) -> Ids:
        """Insert tokens at the start of a sequence, but after an initial special token."""
        start = len(self._start) if self._begins(sequence) else 0
        return (*sequence[:start], *tokens, *sequence[start:])

    def _begins(self, sequence: Ids) -> bool:
        return sequence[: len(self._start)] == self._start
