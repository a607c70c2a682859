"""The private rounds of a phone: what they need is a trainer's, and a solver in numpy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from samara.client.personal.learner import ScoredExamples, State
from samara.client.personal.newton import fit_softmax
from samara.client.personal.softmax_fit import Examples, Solver
from samara.client.training.interrupted_steps import InterruptedSteps
from samara.devices.phone.reference_client.phone_trainer import PhoneTrainer
from samara.shared.frames.instructions import Split, TrainInstruction
from samara.shared.frames.report import Report
from samara.shared.layout import Layout
from samara.shared.replay import Backend


class PhoneLearner:
    """A phone's program and examples as private rounds use them; see `Learner`.

    Args:
        trainer: program and examples.
        client: client index.

    Attributes:
        client: client index.
    """

    def __init__(self, trainer: PhoneTrainer, client: int) -> None:
        self._trainer, self.client = trainer, client
        self._interrupted = InterruptedSteps[Any]()

    @property
    def layout(self) -> Layout:
        """The layout of the adapter."""
        return self._trainer.layout

    @property
    def labels(self) -> tuple[str, ...]:
        """The label words of the program, which stand for its labels."""
        return self._trainer.labels

    @property
    def backend(self) -> Backend:
        """The replay backend."""
        return self._trainer.backend

    @property
    def solve(self) -> Solver:
        """The solver of private fits: Newton's method."""
        return fit_softmax

    def take_steps(
        self, instruction: TrainInstruction, state: State, mask: NDArray[np.bool_] | None
    ) -> Report:
        """Take K local steps of a private round.

        Raises:
            TrainingError: if a loss is not finite.
            ReplayError: if a step leaves the exact range of the state.
        """
        assert mask is None, "a phone's program moves all numbers or none"
        return self._trainer.train(instruction, state, self.client, self._interrupted)

    def data_hash(self, split: Split) -> str:
        """Return a hash of a split's examples in hex; empty without any."""
        return self._trainer.data_hash(split)

    def score(self, state: State | None, split: Split) -> ScoredExamples:
        """Return all examples of a split, scored under a state; None is the base model."""
        return self._trainer.score(state, split)

    def score_evaluated(self, state: State | None, split: Split) -> ScoredExamples:
        """Return all examples of a split, since those of a phone do not change."""
        return self._trainer.score(state, split)

    def score_in_context(self, split: Split) -> None:
        """Return nothing: a phone's program has labels, and no prompts to put examples before."""

    def training_examples(self, state: State, with_features: bool) -> Examples:
        """Return the training examples as scores under a state, labels, and features."""
        scores, labels, _ = self._trainer.score(state, Split.TRAIN)
        features = self._trainer.features() if with_features else np.zeros((len(labels), 0))
        return Examples(scores.astype(np.float64), labels, features.astype(np.float64))
