"""The model, the task and little data, drawn by a seed, and how good a point is on a split."""

import gc
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from client.forward.body import PerturbedBody
from client.forward.grouping import Schedule
from client.forward.peak_memory import keep_freed_memory
from client.forward.resident import ResidentForward
from client.forward.streamed import make_forward_engine
from client.spaces.space import ScoreFunction, empty_adapter
from client.streaming.loading import load_model
from client.tuning.settings import TuneSettings
from shared.directions import batch_order, round_root
from shared.model.lora_fa import PerturbedAdapters
from shared.model.scorers import Prompt, Scorer, scorer_for
from shared.sections import EMBEDDED_DATA
from shared.tasks.catalog import load_task
from shared.tasks.data import SPLITS, load_examples
from shared.tasks.embedded import embedded_examples
from shared.tasks.kinds import GenerationTask, Task
from shared.tasks.metrics import Confusion, answer_metric, label_metric
from shared.tasks.objectives import Goal, objective_of
from shared.tasks.rows import Example
from shared.tasks.sampling import sampled

EVALUATION_MICRO_BATCH = 16
EMBEDDED_WRITERS = 8

At = Callable[[ScoreFunction], NDArray[np.float32]]
"""Runs an engine at one point of a space: `Space.evaluate` without seeds."""


@dataclass(frozen=True, eq=False)
class Split:
    """The examples of a split as the model reads them.

    Attributes:
        examples: n of them.
        prompts: with what is right in them, or all that may be.
        open_prompts: of a generation, without any answer; empty otherwise.
        labels: int64 [n].
    """

    examples: tuple[Example, ...]
    prompts: tuple[Prompt, ...]
    open_prompts: tuple[Prompt, ...]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Figures:
    """How good a point is on a split.

    Attributes:
        examples: how many.
        loss: mean cross-entropy, or of a generation the mean loss per token.
        metric: the task's own.
    """

    examples: int
    loss: float
    metric: float

    @property
    def rank(self) -> tuple[float, float]:
        """The greater, the better: by the metric, then by the loss."""
        return (self.metric, -self.loss)


class TuningSetup:
    """What every method starts from.

    Attributes:
        settings: with nothing left open.
        task: what is asked.
        splits: by name.
        loaded: the model, and its blocks if they are streamed.
        base: the model, as it was read.
        stream: of its blocks, if they are streamed.
        scorer: of it.
        root: the seed of batches and directions.
        objective: of scores.
        decodes: whether steps are judged by decoded answers instead of scores.
    """

    def __init__(self, settings: TuneSettings) -> None:
        """Load model, task and data.

        Raises:
            SamaraError: if any of them cannot be used, or they do not go together.
        """
        torch.set_num_threads(settings.threads)
        self.settings = settings
        self.root = round_root(settings.seed, 0, 0)
        self.task: Task = load_task(settings.task)
        usual: Goal = "likelihood" if isinstance(self.task, GenerationTask) else "cross-entropy"
        self.goal: Goal = usual if settings.objective == "auto" else settings.objective
        self.decodes = isinstance(self.task, GenerationTask) and self.goal == "metric"
        self.objective = objective_of(self.task, usual if self.decodes else self.goal)
        self._loss = objective_of(self.task, usual)
        examples = _drawn(settings, self.task)
        self.data_hash = _hash_of(examples)
        self.load()
        keep_freed_memory()
        self.splits = {
            name: self._split([example for example in examples if example.split == name])
            for name in SPLITS
        }

    def load(self) -> None:
        """Read the model, also once more: base and scorer are then as they were at first."""
        model = self.settings.model
        self.loaded = load_model(model)
        self.base, self.stream = self.loaded.base, self.loaded.make_stream(self.loaded.base)
        # Not in inference mode: what a scorer keeps may be on the way of gradients.
        with torch.no_grad():
            self.scorer: Scorer = scorer_for(
                self.base, self.task, model.max_length, PerturbedBody(self.base, 0)
            )

    def drop(self) -> None:
        """Forget the model, before it is read once more: two need not be in memory at once."""
        if self.stream is not None:
            self.stream.free_buffers()
        del self.loaded, self.base, self.stream, self.scorer
        gc.collect()  # modules and what watches over them refer to each other

    def plain(self) -> tuple[ResidentForward, At]:
        """An engine of the model as it is, and its only point."""
        adapter, here = empty_adapter()
        forward = make_forward_engine(self.base, adapter, self.scorer, self.stream is not None)
        return forward, lambda run: run(here)

    def batch(self, step: int, device: int = 0) -> NDArray[np.int64]:
        """The examples of a step: int64 [B], fewer if there are fewer."""
        count = len(self.splits["train"].labels)
        return batch_order(self.root, device, step, count)[: self.settings.batch]

    def figures(self, forward: ResidentForward, at: At, split: Split) -> Figures:
        """How good a point is on a split.

        Args:
            forward: the engine.
            at: runs it at the point.
            split: of the data.
        """
        size = EVALUATION_MICRO_BATCH
        answers: list[str] = []

        def run(perturbations: PerturbedAdapters) -> NDArray[np.float32]:
            if split.open_prompts:
                answers.extend(forward.decode_answers(perturbations, split.open_prompts, size))
            return forward.scores(perturbations, split.prompts, Schedule("both", size))

        return self.judged(at(run)[0], split, answers)

    def judged(
        self, scores: NDArray[np.float32], split: Split, answers: Sequence[str] = ()
    ) -> Figures:
        """What scores, and answers where there are any, amount to.

        Args:
            scores: float32 [n, width].
            split: of the data.
            answers: n of a generation task.
        """
        loss = float(self._loss(scores[None], split.labels)[0])
        if isinstance(self.task, GenerationTask):
            accepted = [example.answers for example in split.examples]
            metric = answer_metric(self.task, answers, accepted)
        else:
            confusion = Confusion.of(split.labels, scores.argmax(axis=1), scores.shape[1])
            metric = label_metric(self.task, confusion)
        return Figures(len(split.labels), loss, metric)

    def _split(self, examples: Sequence[Example]) -> Split:
        prompt = self.scorer.prompt
        opened = examples if isinstance(self.task, GenerationTask) else []
        return Split(
            tuple(examples),
            tuple(prompt(example.text, example.answers, example.cut) for example in examples),
            tuple(prompt(example.text, (), example.cut) for example in opened),
            np.array([example.label for example in examples], np.int64),
        )

    def rewritten(self, split: Split, change: Callable[[int, Prompt], Prompt]) -> Split:
        """A split with every prompt changed; `change` is told which example it is of."""
        return replace(
            split,
            prompts=tuple(change(index, prompt) for index, prompt in enumerate(split.prompts)),
            open_prompts=tuple(change(index, p) for index, p in enumerate(split.open_prompts)),
        )


def _drawn(settings: TuneSettings, task: Task) -> list[Example]:
    data = settings.data
    if data.path == EMBEDDED_DATA:
        examples = embedded_examples(task, EMBEDDED_WRITERS, settings.seed)
    else:
        examples = load_examples(data.path, task, settings.seed)
    counts: Mapping[str, int] = {
        "train": data.train,
        "validation": data.validation,
        "test": data.test,
    }
    return sampled(examples, counts, settings.seed)


def _hash_of(examples: Iterable[Example]) -> str:
    """Of everything that the examples say, in hexadecimal."""
    whole = hashlib.sha256()
    for example in examples:
        whole.update(repr(example).encode())
    return whole.hexdigest()
