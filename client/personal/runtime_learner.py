"""The learner of a client that computes with a model runtime."""

import json
import platform
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from scipy.special import log_softmax

from samara.client.forward.resident import ResidentForward
from samara.client.personal.lbfgs import fit_softmax
from samara.client.personal.learner import ScoredExamples, State
from samara.client.personal.own_demonstrations import own_demonstrations
from samara.client.personal.own_words import OwnText, OwnWords, choose_own_words
from samara.client.personal.softmax_fit import Examples, Solver
from samara.client.training.client_data import ClientData, LabelledPrompts
from samara.client.training.local_step_plan import InterruptedSteps, smallest_batch
from samara.client.training.local_steps import (
    prepare_evaluated_examples,
    prepare_training_examples,
    take_local_steps,
)
from samara.client.training.model_runtime import ModelRuntime
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.scorers import Prompt
from samara.shared.protocol.frames.hello import SPLIT_BYTES, SPLIT_EXAMPLES, SPLIT_TOKENS, Hello
from samara.shared.protocol.frames.instructions import PERSONAL_TRACK, Split, TrainInstruction
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.replay import Backend
from samara.shared.tasks.kinds import GenerationTask
from samara.shared.tasks.rows import Example, data_fingerprint

Generations = Callable[[Split, list[Example], str], tuple[str, ...]]
"""Function that takes a split, its examples and the hash of their set, and returns the hashes of
their generations."""


class RuntimeLearner:
    """A learner with a model runtime and a client's data; see `Learner`.

    Args:
        runtime: model runtime.
        data: examples of the client.
        generations: function that divides examples into generations; None if all examples arrived
            together.
    """

    def __init__(
        self, runtime: ModelRuntime, data: ClientData, generations: Generations | None = None
    ) -> None:
        self._runtime, self._data, self._generations = runtime, data, generations
        self._interrupted: InterruptedSteps[Any] = InterruptedSteps()

    @property
    def client(self) -> int:
        """The client index."""
        return self._data.client

    @property
    def layout(self) -> Layout:
        """The layout of the adapter."""
        return self._runtime.layout

    @property
    def model_id(self) -> bytes:
        """The model id of the base model, 32 bytes."""
        return self._runtime.model_id

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the task, each by its first value in the data."""
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

    def introduce(self, last_round: int, hides_examples: bool) -> Hello:
        """Return the hello of the client; see `Learner.introduce`.

        Only simulated clients give fingerprints of their data. The hash of a person's few examples
        could be recognised.
        """
        runtime, data = self._runtime, self._data
        facts = runtime.facts() | {
            "clients": data.client_count or 0,
            "platform": platform.platform(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        if not hides_examples:
            facts[SPLIT_EXAMPLES] = _by_name(self.example_counts())
            if isinstance(runtime.task, GenerationTask):
                texts = {split: data.tokenized(split) for split in Split}
                tokens = {split: int(own.token_counts.sum()) for split, own in texts.items()}
                facts[SPLIT_TOKENS] = _by_name(tokens)
                facts[SPLIT_BYTES] = _by_name({key: own.byte_count for key, own in texts.items()})
            if data.client_count:
                prints = {split: data_fingerprint(data.in_split(split)) for split in Split}
                facts["fingerprints"] = _by_name(prints)
        return Hello(
            data.client,
            0 if hides_examples else len(data.in_split(Split.TRAIN)),
            last_round,
            runtime.model_id,
            runtime.layout.to_json(),
            json.dumps(facts, sort_keys=True),
        )

    def example_counts(self) -> Mapping[Split, int]:
        """Return the number of examples of each split."""
        return {split: len(self._data.in_split(split)) for split in Split}

    def smallest_batch(self, instruction: TrainInstruction) -> int:
        """Return the number of examples in the smallest batch of an instruction's steps."""
        labels = self._data.labels(Split.TRAIN)
        return smallest_batch(instruction, labels, self._runtime.label_count)

    def generations_of(self, split: Split) -> tuple[str, ...]:
        """Return the generations of a split's examples; see `Learner.generations_of`."""
        if not (hash_ := self._data.hash_of(split)):
            return ()
        if self._generations is None:
            return (hash_,)
        return self._generations(split, self._data.in_split(split), hash_)

    def limit_evaluation(self, counts: Mapping[Split, int]) -> None:
        """Limit the number of evaluated examples of some splits; see `Learner.limit_evaluation`."""
        self._data.most_evaluated = counts

    def take_passes(self) -> int:
        """Return the number of rows that went through the model since the last call."""
        return self._data.take_passes()

    def take_steps(
        self, instruction: TrainInstruction, state: State, mask: NDArray[np.bool_] | None
    ) -> Report:
        """Take K local steps; see `Learner.take_steps`."""
        interrupted = self._interrupted if instruction.track == PERSONAL_TRACK else None
        return take_local_steps(self._runtime, self._data, instruction, state, mask, interrupted)

    def data_hash(self, split: Split) -> str:
        """Return a hash of a split's examples in hex, or "" without examples."""
        return self._data.hash_of(split)

    def score(self, state: State | None, split: Split) -> ScoredExamples:
        """Return all examples of a split with their scores; see `Learner.score`."""
        examples = self._data.tokenized(split)
        for part in examples.parts:
            self._runtime.prepare(part)
        return self._scored(state, examples)

    def score_evaluated(self, state: State | None, split: Split) -> ScoredExamples:
        """Return a split's evaluated examples with their scores; see `Learner.score_evaluated`."""
        return self._scored(state, prepare_evaluated_examples(self._runtime, self._data, split))

    def score_in_context(self, split: Split) -> NDArray[np.float32] | None:
        """Return the base model's scores with demonstrations, float32 [n, 2]; None without any."""
        runtime, data = self._runtime, self._data
        count = runtime.config.evaluate.retrieved
        own = own_demonstrations(runtime.task, data, runtime.tokenize, count)
        if own is None:
            return None
        prompts = [runtime.tokenize(own.before(one)) for one in data.evaluated_texts(split)]
        return runtime.base_scores(prompts) if prompts else np.zeros((0, 2), np.float32)

    def own_words(self, state: State) -> OwnWords | None:
        """Return the client's own words for the model under a state, or None without texts."""
        if not isinstance(self._runtime.task, GenerationTask):
            return None
        validation = self._data.tokenized(Split.VALIDATION).prompts
        adapter = self._runtime.perturbation(state)

        def log_likelihoods(index: int) -> NDArray[np.float64]:
            logits = self._answer_logits(adapter, validation[index])
            own = validation[index].targets[0]
            rows = (row for part in logits for row in part.astype(np.float64))
            return np.array([log_softmax(row)[w] for row, w in zip(rows, own, strict=True)])

        train = [own_text(one) for one in self._data.tokenized(Split.TRAIN).prompts]
        return choose_own_words(train, [own_text(one) for one in validation], log_likelihoods)

    def score_own_words(self, state: State, own: OwnWords, split: Split) -> ScoredExamples:
        """Return the evaluated examples, scored with own words mixed into the probabilities."""
        if own.change_nothing:
            return self.score_evaluated(state, split)
        examples, adapter = self._data.evaluated(split), self._runtime.perturbation(state)
        scores = [
            own.score(self._answer_logits(adapter, prompt), own_text(prompt))
            for prompt in examples.prompts
        ]
        rows = np.array(scores, np.float32).reshape(-1, 2)
        return ScoredExamples(rows, examples.labels, examples.token_counts)

    def training_examples(self, state: State, with_features: bool) -> Examples:
        """Return the training examples: scores under a state, labels, and features if requested."""
        runtime, train = self._runtime, prepare_training_examples(self._runtime, self._data)
        before = runtime.passes
        features = np.zeros((len(train.labels), 0))
        if with_features:
            features = runtime.features(train.prompts).astype(np.float64)
        scores = runtime.scores(state, train.prompts).astype(np.float64)
        self._data.passes += runtime.passes - before
        return Examples(scores, train.labels, features)

    def _answer_logits(
        self, adapter: Perturbations, prompt: Prompt
    ) -> Iterator[NDArray[np.float32]]:
        forward = self._runtime.forward
        assert isinstance(forward, ResidentForward)  # texts have no readout
        return forward.answer_logits(adapter, prompt)

    def _scored(self, state: State | None, examples: LabelledPrompts) -> ScoredExamples:
        runtime, prompts = self._runtime, examples.prompts
        tokens = examples.token_counts if isinstance(runtime.task, GenerationTask) else None
        if not prompts:
            width = runtime.label_count if tokens is None else 2
            return ScoredExamples(np.zeros((0, width), np.float32), examples.labels, tokens)
        scores = runtime.base_scores(prompts) if state is None else runtime.scores(state, prompts)
        return ScoredExamples(scores, examples.labels, tokens)


def own_text(prompt: Prompt) -> OwnText:
    """Return the answer in a generation's prompt, with the tokens before it."""
    before = prompt.sequences[0][: prompt.supervised[0][0] + 1]
    return OwnText.behind(before, prompt.targets[0])


def _by_name(facts: Mapping[Split, Any]) -> dict[str, Any]:
    return {split.name.lower(): fact for split, fact in facts.items()}
