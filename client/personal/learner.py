"""A learner: the model and the examples of a client, and all computing with them.

A board computes with a model runtime (`samara.client.personal.runtime_learner`), a phone with its
exported program.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from samara.client.personal.softmax_fit import Examples, Solver
from samara.shared.frames.hello import Hello
from samara.shared.frames.instructions import Split, TrainInstruction
from samara.shared.frames.report import Report
from samara.shared.layout import Layout
from samara.shared.replay import Backend

State = NDArray[np.int64]


class ScoredExamples(NamedTuple):
    """Examples of a split with their scores under one model.

    Attributes:
        scores: float32 [n, labels].
        labels: right labels, int64 [n].
        tokens: number of tokens of each answer, int64 [n]; None but for a generation.
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
        """The labels of the task, in order; empty for texts, and for rows with own candidates."""

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
            hides_examples: whether it leaves out all facts of the examples, also their number.
        """

    def example_counts(self) -> Mapping[Split, int]:
        """Return the number of examples of each split."""

    def smallest_batch(self, instruction: TrainInstruction) -> int:
        """Return the number of examples in the smallest batch of an instruction's steps."""

    def generations_of(self, split: Split) -> tuple[str, ...]:
        """Return the hashes, in hex, of a split's examples by the time at which they came.

        Raises:
            TrainerError: if the record of these times cannot be read or written.
        """

    def limit_evaluation(self, counts: Mapping[Split, int]) -> None:
        """Evaluate at most so many examples of a split from now on; others are not limited."""

    def take_passes(self) -> int:
        """Return the rows that went through the model since the call before, where counted."""

    def take_steps(
        self, instruction: TrainInstruction, state: State, mask: NDArray[np.bool_] | None
    ) -> Report:
        """Take K local steps from a state, and return the report.

        The finished steps of a private round stay in memory if an exception interrupts it.

        Args:
            instruction: instruction of the round.
            state: int64 [d]; it is not changed.
            mask: bool [d], true where numbers are perturbed; None perturbs all.

        Raises:
            TrainingError: if a loss is not finite.
            ReplayError: if a step leaves the exact range of the state.
        """

    def data_hash(self, split: Split) -> str:
        """Return a hash of a split's examples in hex, whatever their order; empty without any."""

    def score(self, state: State | None, split: Split) -> ScoredExamples:
        """Return all examples of a split, scored under a state; None is the base model."""

    def score_evaluated(self, state: State | None, split: Split) -> ScoredExamples:
        """Return the examples that an evaluation counts; the others may be left out."""

    def score_in_context(self, split: Split) -> NDArray[np.float32] | None:
        """Return the scores of the evaluated examples under the base model in context.

        The client's own training examples precede every prompt. None where the run asks for none,
        or the task has no prompts.
        """

    def training_examples(self, state: State, with_features: bool) -> Examples:
        """Return the training examples as scores under a state, labels, and features of a readout.

        The forward passes that they take are counted as those of the client's steps are.
        """
