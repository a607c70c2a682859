"""In-context learning: solved examples stand before every example, and nothing is trained.

As the baseline of MeZO (appendix E.4): 32 demonstrations, or as many as the model reads.
"""

from collections.abc import Sequence

import numpy as np

from client.tuning.tuning_setup import Figures, Split, TuningSetup
from shared.directions import batch_order
from shared.errors import ModelError
from shared.model.scorers import Ids, Prompt
from shared.tasks.kinds import ClassificationTask, GenerationTask, Task
from shared.tasks.rows import Example

SEPARATOR = "\n\n"
"""Stands behind every demonstration."""


class InContext:
    """Prompts of a causal LM behind demonstrations from the training split.

    Every example has the first ones of the same drawn order, as many as leave the model room for
    the example itself, which is as long as it would be without them.

    Args:
        bench: of a causal LM.
        demonstrations: how many, at most.

    Raises:
        ModelError: if the model is of another family.
    """

    def __init__(self, bench: TuningSetup, demonstrations: int) -> None:
        if bench.base.family != "causal":
            raise ModelError(
                f"{bench.base.folder}: in-context learning needs a causal LM and this is a "
                f"{bench.base.family} model; choose another method or model"
            )
        self._bench = bench
        train = bench.splits["train"].examples
        order = batch_order(bench.root, 0, 0, len(train))[:demonstrations]
        tokenizer = bench.base.tokenizer
        self._shown: list[Ids] = [
            tuple(
                tokenizer(demonstration(bench.task, train[i]), add_special_tokens=False).input_ids
            )
            for i in order
        ]
        self._ends = np.cumsum([len(shown) for shown in self._shown])
        bos = tokenizer.bos_token_id
        self._start: Ids = () if bos is None else (bos,)
        written = bench.task.tokens if isinstance(bench.task, GenerationTask) else 0
        self._limit = bench.base.context - written

    def figures(self, split: Split) -> Figures:
        """How good the model is with demonstrations before every example."""
        forward, here = self._bench.plain()
        behind = self._bench.rewritten(split, lambda _, prompt: self.behind(prompt))
        return self._bench.figures(forward, here, behind)

    def count(self, prompt: Prompt) -> int:
        """How many demonstrations fit before a prompt."""
        room = self._limit - max(map(len, prompt.sequences))
        return int(np.searchsorted(self._ends, room, side="right"))

    def behind(self, prompt: Prompt) -> Prompt:
        """A prompt behind as many demonstrations as fit."""
        shown = [token for one in self._shown[: self.count(prompt)] for token in one]
        return Prompt(
            tuple(self._inserted(sequence, shown) for sequence in prompt.sequences),
            tuple(tuple(place + len(shown) for place in places) for places in prompt.supervised),
            prompt.targets,
        )

    def _inserted(self, sequence: Ids, shown: Sequence[int]) -> Ids:
        """Behind the token that begins a text, if there is one."""
        begin = len(self._start) if sequence[: len(self._start)] == self._start else 0
        return (*sequence[:begin], *shown, *sequence[begin:])


def demonstration(task: Task, example: Example) -> str:
    """An example with what is right in its place, and the separator."""
    if isinstance(task, ClassificationTask):
        before, after = task.question_before_word, task.question_after_word
        solved = example.text + before + task.words[example.label] + after
    else:
        answer = example.answers[example.label]
        solved = example.text + answer + (task.stop if isinstance(task, GenerationTask) else "")
    return solved + SEPARATOR
