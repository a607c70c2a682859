"""Learners without a model."""

import json
import zlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from helpers import report_to

from samara.client.personal.lbfgs import fit_softmax
from samara.client.personal.learner import ScoredExamples, State
from samara.client.personal.own_words import OwnWords
from samara.client.personal.softmax_fit import Examples
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.frames.instructions import Split, TrainInstruction
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.replay_numpy import NumpyBackend


class ExamplesOnly(SimpleNamespace):
    """A client's examples, which all arrived together, under a layout of a given size."""

    def __init__(self, size: int = 1, examples: int = 8) -> None:
        super().__init__(layout=SimpleNamespace(size=size), examples=examples)

    def generations_of(self, split: Split) -> tuple[str, ...]:
        return (split.name,)

    def smallest_batch(self, instruction: Any) -> int:
        return int(self.examples)


class Modelless:
    """A client that answers without a model: its numbers depend on the question and the state."""

    def __init__(self, layout: Layout, examples: int = 6, client: int = 7) -> None:
        self.layout, self.client, self.model_id = layout, client, bytes([2]) * 32
        self.labels, self.backend, self.solve = ("no", "yes"), NumpyBackend(), fit_softmax
        self._labels = np.arange(examples) % len(self.labels)

    def introduce(self, last_round: int, hides_examples: bool) -> Hello:
        counts = {"split_examples": {s.name.lower(): n for s, n in self.example_counts().items()}}
        facts = json.dumps({} if hides_examples else counts)
        examples = 0 if hides_examples else len(self._labels)
        given = self.client, examples, last_round, self.model_id, self.layout.to_json(), facts
        return Hello(*given)

    def example_counts(self) -> Mapping[Split, int]:
        return dict.fromkeys(Split, len(self._labels))

    def smallest_batch(self, instruction: TrainInstruction) -> int:
        return min(instruction.batch, len(self._labels))

    def generations_of(self, split: Split) -> tuple[str, ...]:
        return (split.name,)

    def limit_evaluation(self, counts: Mapping[Split, int]) -> None:
        pass

    def take_passes(self) -> int:
        return 0

    def take_steps(self, instruction: TrainInstruction, state: State, mask: Any) -> Report:
        measured = {"curvature": 1.0} if instruction.curvature_every else {}
        return report_to(instruction, self.client, **measured)

    def data_hash(self, split: Split) -> str:
        return split.name

    def score(self, state: State | None, split: Split) -> ScoredExamples:
        seed = zlib.crc32(b"" if state is None else state.tobytes()) + split
        shape = len(self._labels), len(self.labels)
        scores = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        return ScoredExamples(scores, self._labels)

    def score_evaluated(self, state: State | None, split: Split) -> ScoredExamples:
        return self.score(state, split)

    def score_in_context(self, split: Split) -> None:
        return None

    def own_words(self, state: State) -> None:
        return None

    def score_own_words(self, state: State, own: OwnWords, split: Split) -> ScoredExamples:
        return self.score(state, split)

    def training_examples(self, state: State, with_features: bool) -> Examples:
        scores, labels, _ = self.score(state, Split.TRAIN)
        return Examples(scores.astype(np.float64), labels, np.zeros((len(labels), 0)))
