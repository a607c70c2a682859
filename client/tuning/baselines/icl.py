"""The in-context learning baseline: prompts begin with solved examples, nothing is trained.

The baseline of MeZO (appendix E.4): 32 demonstrations, or as many as fit the model's context.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from samara.client.tuning.tuning_setup import EvaluationResult, TaskSplit, TuningSetup
from samara.shared.directions import batch_order
from samara.shared.errors import ModelError, TaskError
from samara.shared.model.prompt_frame import first_tokens, form_of
from samara.shared.model.scorers import Prompt
from samara.shared.model.word_tokens import Ids
from samara.shared.tasks.demonstrations import demonstration
from samara.shared.tasks.kinds import CHAT, GenerationTask


class InContext:
    """A baseline that puts demonstrations from the training split before a causal LM's prompts.

    All prompts get the first ones of one random order, as many as fit the model's context together
    with the prompt, which itself is not shortened for them.

    Args:
        setup: setup with a causal LM.
        demonstrations: number of demonstrations, at most.

    Raises:
        ModelError: if the model is no causal LM.
        TaskError: if it is asked as a chat.
    """

    def __init__(self, setup: TuningSetup, demonstrations: int) -> None:
        if setup.base.family != "causal":
            raise ModelError(
                f"{setup.base.folder}: in-context learning needs a causal LM and this is a "
                f"{setup.base.family} model; choose another optimizer or model"
            )
        if form_of(setup.task) == CHAT:
            raise TaskError(
                f"task {setup.task.name} is asked as a chat, and demonstrations stand before a "
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
        self._limit = setup.base.context - answer

    def evaluate(self, split: TaskSplit) -> EvaluationResult:
        """Evaluate the base model on a split, with demonstrations before every prompt."""
        extended = replace(
            split,
            prompts=tuple(map(self.extend, split.prompts)),
            open_prompts=tuple(map(self.extend, split.open_prompts)),
        )
        return self._setup.evaluate_base(extended)

    def count(self, prompt: Prompt) -> int:
        """Return the number of demonstrations that fit before a prompt."""
        free = self._limit - max(map(len, prompt.sequences))
        return int(np.searchsorted(self._ends, free, side="right"))

    def extend(self, prompt: Prompt) -> Prompt:
        """Return a prompt with as many demonstrations before it as fit."""
        tokens = [token for ids in self._demonstrations[: self.count(prompt)] for token in ids]
        return Prompt(
            tuple(self._insert(sequence, tokens) for sequence in prompt.sequences),
            tuple(
                tuple(position + len(tokens) for position in positions)
                for positions in prompt.supervised
            ),
            prompt.targets,
        )

    def _insert(self, sequence: Ids, tokens: Sequence[int]) -> Ids:
        """Insert tokens at the start of a sequence, behind its first special token if any."""
        start = len(self._start) if sequence[: len(self._start)] == self._start else 0
        return (*sequence[:start], *tokens, *sequence[start:])
