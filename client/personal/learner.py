"""A learner: the model and the examples of a client, and all computations with them.

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
    """Examples of a split with their scores under one model.

    Attributes:
        scores: float32 [n, labels].
        labels: right labels, int64 [n].
        tokens: number of tokens of each answer, int64 [n]; None if the task is not a generation.
    """

    scores: NDArray[np.float32]
    labels: NDArray[np.int64]
    tokens: NDArray[np.int64] | None = None


class Learner(Protocol):
    """The model and the examples of a client."""

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
        """Limit the number of evaluated examples of the given splits. Other splits get no limit."""

    def take_passes(self) -> int:
        """Return the number of rows through the model since the last call, or 0 if not counted."""

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
        """Return all examples of a split, scored under a state. None means the base model."""

    def score_evaluated(self, state: State | None, split: Split) -> ScoredExamples:
        """Return a split's examples within `limit_evaluation`, scored under a state."""

    def score_in_context(self, split: Split) -> NDArray[np.float32] | None:
        """Return the scores of the evaluated examples under the base model in context.

        The client's own training examples precede every prompt. The result is None if the run does
        not request these scores, or the task has no prompts.
        """

    def own_words(self, state: State) -> OwnWords | None:
        """Return the client's own words for the model under a state, or None without texts."""

    def score_own_words(self, state: State, own: OwnWords, split: Split) -> ScoredExamples:
        """Return the result of `score_evaluated` with own words mixed into the probabilities."""

    def training_examples(self, state: State, with_features: bool) -> Examples:
        """Return the training examples: scores under a state, labels, and features of a readout.

        `take_passes` also counts the rows of these forward passes.
        """
