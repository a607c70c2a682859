"""The private rounds of a client with a model runtime."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samara.client.personal.lbfgs import fit_softmax
from samara.client.personal.learner import ScoredExamples, State
from samara.client.personal.own_demonstrations import own_demonstrations
from samara.client.personal.personalizer import Personalizer
from samara.client.personal.softmax_fit import Examples, Solver
from samara.client.training.client_data import ClientData, LabelledPrompts
from samara.client.training.interrupted_steps import InterruptedSteps
from samara.client.training.local_steps import (
    prepare_evaluated_examples,
    prepare_training_examples,
    take_local_steps,
)
from samara.client.training.model_runtime import ModelRuntime
from samara.shared.config import RunConfig
from samara.shared.frames.instructions import Split, TrainInstruction
from samara.shared.frames.report import Report
from samara.shared.layout import Layout
from samara.shared.replay import Backend
from samara.shared.runs import client_folder
from samara.shared.tasks.kinds import GenerationTask


class RuntimeLearner:
    """A model runtime and a client's data as private rounds use them.

    Args:
        runtime: model runtime.
        data: examples of the client.
        interrupted: keeps the finished steps of a round that an exception interrupts.
    """

    def __init__(
        self,
        runtime: ModelRuntime,
        data: ClientData,
        interrupted: InterruptedSteps[Any] | None = None,
    ) -> None:
        self._runtime, self._data, self._interrupted = runtime, data, interrupted

    @property
    def client(self) -> int:
        """The client index."""
        return self._data.client

    @property
    def layout(self) -> Layout:
        """The layout of the adapter."""
        return self._runtime.layout

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the task by their first values in the data."""
        task = self._runtime.task
        return () if isinstance(task, GenerationTask) else tuple(each[0] for each in task.labels)

    @property
    def backend(self) -> Backend:
        """The replay backend."""
        return self._runtime.backend

    @property
    def solve(self) -> Solver:
        """The solver of private fits: L-BFGS."""
        return fit_softmax

    def take_steps(
        self, instruction: TrainInstruction, state: State, mask: NDArray[np.bool_] | None
    ) -> Report:
        """Take K local steps; see `Learner.take_steps`."""
        return take_local_steps(
            self._runtime, self._data, instruction, state, mask, self._interrupted
        )

    def data_hash(self, split: Split) -> str:
        """Return a hash of a split's examples in hex; empty without any."""
        return self._data.hash_of(split)

    def score(self, state: State | None, split: Split) -> ScoredExamples:
        """Return all examples of a split, scored under a state; None is the base model."""
        examples = self._data.tokenized(split)
        for part in examples.parts:
            self._runtime.prepare(part)
        return self._scored(state, examples)

    def score_evaluated(self, state: State | None, split: Split) -> ScoredExamples:
        """Return the examples that an evaluation counts, with their scores under a state."""
        return self._scored(state, prepare_evaluated_examples(self._runtime, self._data, split))

    def score_in_context(self, split: Split) -> NDArray[np.float32] | None:
        """Return the scores of the base model in context, float32 [n, 2]; None without it."""
        runtime, data = self._runtime, self._data
        count = runtime.config.evaluate.retrieved
        own = own_demonstrations(runtime.task, data, runtime.tokenize, count)
        if own is None:
            return None
        prompts = [runtime.tokenize(own.before(one)) for one in data.evaluated_texts(split)]
        return runtime.base_scores(prompts) if prompts else np.zeros((0, 2), np.float32)

    def training_examples(self, state: State, with_features: bool) -> Examples:
        """Return the training examples as scores under a state, labels, and features."""
        runtime, train = self._runtime, prepare_training_examples(self._runtime, self._data)
        before = runtime.passes
        features = np.zeros((len(train.labels), 0))
        if with_features:
            features = runtime.features(train.prompts).astype(np.float64)
        scores = runtime.scores(state, train.prompts).astype(np.float64)
        self._data.passes += runtime.passes - before
        return Examples(scores, train.labels, features)

    def _scored(self, state: State | None, examples: LabelledPrompts) -> ScoredExamples:
        runtime, prompts = self._runtime, examples.prompts
        tokens = examples.token_counts if isinstance(runtime.task, GenerationTask) else None
        if not prompts:
            width = runtime.label_count if tokens is None else 2
            return ScoredExamples(np.zeros((0, width), np.float32), examples.labels, tokens)
        scores = runtime.base_scores(prompts) if state is None else runtime.scores(state, prompts)
        return ScoredExamples(scores, examples.labels, tokens)


def runtime_personalizer(
    runtime: ModelRuntime,
    data: ClientData,
    config: RunConfig,
    run_id: bytes,
    interrupted: InterruptedSteps[Any] | None = None,
    runs: Path | None = None,
    common: State | None = None,
) -> Personalizer:
    """Return the private rounds of a client with a model runtime, in its folder of the run.

    Args:
        runtime: model runtime.
        data: examples of the client.
        config: settings of the run on this client.
        run_id: run id, 8 bytes.
        interrupted: keeps the finished steps of a round that an exception interrupts.
        runs: folder of all runs of a live client; see `Personalizer`.
        common: common intercept in the federation's state; see `Personalizer`.
    """
    folder = client_folder(config, run_id, data.client)
    learner = RuntimeLearner(runtime, data, interrupted)
    snapshot_every = config.ledger.snapshot_every
    return Personalizer(learner, config.terms, run_id, folder, snapshot_every, runs, common)
