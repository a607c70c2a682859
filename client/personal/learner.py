"""A learner: what private rounds need of a client's model and examples.

A board computes with a model runtime (`samara.client.personal.runtime_learner`), a phone with its
exported program.
"""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from samara.client.personal.softmax_fit import Examples, Solver
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
    def labels(self) -> tuple[str, ...]:
        """The labels of the task, in order; empty for texts, and for rows with own candidates."""

    @property
    def backend(self) -> Backend:
        """The replay backend."""

    @property
    def solve(self) -> Solver:
        """The solver of private fits on this device."""

    def take_steps(
        self, instruction: TrainInstruction, state: State, mask: NDArray[np.bool_] | None
    ) -> Report:
        """Take K local steps from a state, and return the report.

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
