"""The interface to a client's model and examples, and to all computations with them.

A board computes with a model runtime (`samara.client.personal.runtime_learner`), a phone with its
exported program.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from samara.client.personal.own_words import OwnWords
from samara.client.personal.softmax_fit import Examples, Solver
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.frames.instructions import Split, TrainInstruction
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.replay import Backend

State = NDArray[np.int64]


class ScoredExamples(NamedTuple):
    """The labels of a split's examples, and their scores under one model.

    Attributes:
        scores: float32 [n, labels].
        labels: right labels, int64 [n].
        tokens: number of tokens of each answer, int64 [n]; None if the task is not a generation.
    """

    scores: NDArray[np.float32]
    labels: NDArray[np.int64]
    tokens: NDArray[np.int64] | None = None


class Learner(Protocol):
    """The model and the examples of a client, with all computations that a run needs."""

    @property
    def client(self) -> int:
        """The client index."""

    @property
    def layout(self) -> Layout:
        """The layout of the adapter."""

    @property
    def model_id(self) -> bytes:
        """The model id of the base model, 32 bytes."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the task, in order; empty if the task does not list labels."""

    @property
    def backend(self) -> Backend:
        """The replay backend."""

    @property
    def solve(self) -> Solver:
        """The solver of private fits on this device."""

    def introduce(self, last_round: int, hides_examples: bool) -> Hello:
        """Return the hello of the client.

        Args:
            last_round: last round in the client's state.
            hides_examples: whether the hello omits all facts about the examples, including their
                number.
        """

    def example_counts(self) -> Mapping[Split, int]:
        """Return the number of examples of each split."""

    def smallest_batch(self, instruction: TrainInstruction) -> int:
        """Return the number of examples in the smallest batch of an instruction's steps."""

    def generations_of(self, split: Split) -> tuple[str, ...]:
        """Return the hashes, in hex, of a split's generations of examples.

        Raises:
            TrainerError: if the record of the generations cannot be read or written.
        """

    def limit_evaluation(self, counts: Mapping[Split, int]) -> None:
        """Limit the number of evaluated examples of some splits; other splits have no limit.

        Args:
            counts: maximum number of evaluated examples by split.
        """

    def take_passes(self) -> int:
        """Return the number of rows run through the model since the last call; 0 if not counted."""

    def take_steps(
        self, instruction: TrainInstruction, state: State, mask: NDArray[np.bool_] | None
    ) -> Report:
        """Take K local steps from a state, and return the report.

        If an exception interrupts a private round, its finished steps stay in memory for the next
        call.

        Args:
            instruction: instruction of the round.
            state: int64 [d]; it is not changed.
            mask: bool [d], true where numbers are perturbed; None perturbs all.

        Raises:
            TrainingError: if a loss is not finite.
            ReplayError: if a step leaves the exact range of the state.
        """

    def data_hash(self, split: Split) -> str:
        """Return an order-independent hash of a split's examples in hex, or "" without examples."""

    def score(self, state: State | None, split: Split) -> ScoredExamples:
        """Return all examples of a split with their scores.

        Args:
            state: int64 [d]; None for the base model.
            split: the split.
        """

    def score_evaluated(self, state: State | None, split: Split) -> ScoredExamples:
        """Return the examples of a split within `limit_evaluation`, with their scores.

        Args:
            state: int64 [d]; None for the base model.
            split: the split.
        """

    def score_in_context(self, split: Split) -> NDArray[np.float32] | None:
        """Return the evaluated examples' scores under the base model with demonstrations.

        Before every prompt, the model reads some of the client's training examples. The result is
        None if the run does not request these scores, or the task has no prompts.
        """

    def own_words(self, state: State) -> OwnWords | None:
        """Return the client's own words for the model under a state; None without texts."""

    def score_own_words(self, state: State, own: OwnWords, split: Split) -> ScoredExamples:
        """Return the examples of `score_evaluated`, with own words mixed into the probabilities."""

    def training_examples(self, state: State, with_features: bool) -> Examples:
        """Return the training examples: scores under a state, labels, and features for a readout.

        The rows of these forward passes also count in `take_passes`.
        """
