"""The learner of a phone, which computes by calls of the phone's program and numpy."""

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from samara.client.estimators.prge import run_estimator
from samara.client.personal.learner import ScoredExamples, State
from samara.client.personal.newton import fit_softmax
from samara.client.personal.own_words import OwnWords
from samara.client.personal.softmax_fit import Examples, Solver
from samara.client.training.local_step_plan import InterruptedSteps, LocalStepPlan, smallest_batch
from samara.devices.phone.reference_client.adapter_calls import NOTHING, AdapterCalls, Pending
from samara.devices.phone.reference_client.examples import TokenizedExamples
from samara.devices.phone.reference_client.readout_calls import KEPT_BYTES, ReadoutCalls
from samara.devices.phone.reference_client.readout_program import ReadoutProgram
from samara.devices.phone.reference_client.runtime import PhoneProgram, ProgramBackend
from samara.shared.protocol.frames.hello import SPLIT_EXAMPLES, Hello
from samara.shared.protocol.frames.instructions import (
    PERSONAL_TRACK,
    Split,
    TrainInstruction,
    token_of,
)
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.replay import check_fits, summed


class PhoneLearner:
    """A phone's program together with the phone's examples; see `Learner`.

    Args:
        program: program of the model and adapter.
        examples: examples by split.
        client: client index; 0 outside a run.
        kept_bytes: maximum bytes of cached readout representations.

    Attributes:
        client: client index.
        layout: layout of the adapter.
        model_id: model id of the base model, 32 bytes.
        labels: label words of the program.
        backend: replay backend that uses the program.
    """

    def __init__(
        self,
        program: PhoneProgram | ReadoutProgram,
        examples: dict[Split, TokenizedExamples],
        client: int = 0,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._program = program
        self._examples = examples
        self.client = client
        self._calls: AdapterCalls | ReadoutCalls
        if isinstance(program, ReadoutProgram):
            self._calls = ReadoutCalls(program, examples, kept_bytes)
        else:
            self._calls = AdapterCalls(program, examples)
        self.labels = tuple(program.manifest.words)
        self.layout = program.layout
        self.model_id = bytes.fromhex(program.manifest.model_id)
        self._start = program.manifest.start_values()
        self.backend = ProgramBackend(program)
        self._interrupted: InterruptedSteps[_Steps] = InterruptedSteps()

    @property
    def solve(self) -> Solver:
        """The solver of private fits: Newton's method."""
        return fit_softmax

    def introduce(self, last_round: int, hides_examples: bool) -> Hello:
        """Return the hello of this phone; see `Learner.introduce`."""
        manifest = self._program.manifest
        counts = {split.name.lower(): count for split, count in self.example_counts().items()}
        facts: dict[str, object] = {} if hides_examples else {SPLIT_EXAMPLES: counts}
        facts |= {
            "clients": 0,
            "quantization": manifest.quantization,
            "device": f"phone program, {manifest.delegate}",
            "platform": platform.platform(),
            "executorch": version("executorch"),
            "replay": self.backend.name,
        }
        return Hello(
            self.client,
            0 if hides_examples else len(self._examples[Split.TRAIN]),
            last_round,
            self.model_id,
            manifest.layout,
            json.dumps(facts, sort_keys=True),
        )

    def example_counts(self) -> Mapping[Split, int]:
        """Return the number of examples of each split."""
        return {split: len(own) for split, own in self._examples.items()}

    def smallest_batch(self, instruction: TrainInstruction) -> int:
        """Return the number of examples in the smallest batch of an instruction's steps."""
        return smallest_batch(instruction, self._examples[Split.TRAIN].labels, len(self.labels))

    def generations_of(self, split: Split) -> tuple[str, ...]:
        """Return the hash of a split's examples in hex; empty if there are none.

        All examples of a phone arrive together, so they are a single generation. The hash does not
        depend on the order of the examples.
        """
        return (hash_,) if (hash_ := self.data_hash(split)) else ()

    def limit_evaluation(self, counts: Mapping[Split, int]) -> None:
        """Do nothing: a phone evaluates all examples, because the examples do not change."""

    def take_passes(self) -> int:
        """Return 0: a phone does not count its passes."""
        return 0

    def take_steps(
        self, instruction: TrainInstruction, state: State, mask: NDArray[np.bool_] | None = None
    ) -> Report:
        """Take K local steps from a state; see `Learner.take_steps`.

        A step's update is applied at the beginning of the next step. With adapters inside the
        model, a step therefore needs one call of the program if it has the program's number of
        queries and examples. The program works on the adapter's weights, which are the sum of the
        state and the initial weights.

        Args:
            instruction: instruction of the round.
            state: int64 [d].
            mask: must be None, because a phone's program always perturbs all weights.

        Raises:
            TrainingError: if a loss is not finite.
            ReplayError: if a local step does not fit the exact state.
        """
        assert mask is None
        examples = self._examples[Split.TRAIN]
        token = token_of(instruction.encode())
        plan = LocalStepPlan(instruction, self.client, examples.labels, len(self.labels))
        steps = _Steps(plan, state + self._start)
        if instruction.track == PERSONAL_TRACK:
            steps = self._interrupted.resume(token, examples, steps)
        for _ in range(steps.plan.steps_taken, instruction.steps):
            work = self._calls.begin_step(steps.weights, steps.pending, instruction.is_profiled)
            estimate = run_estimator(steps.plan.next_estimator(), work.losses_of)
            added = steps.plan.finish_step(estimate)
            steps.weights = work.state
            steps.pending = summed(added)
            check_fits(work.state - self._start, [one_pass for _, one_pass in added])
        return steps.plan.report(token)

    def data_hash(self, split: Split) -> str:
        """Return a hash of a split's examples in hex; empty if there are none.

        The hash does not depend on the order of the examples.
        """
        return self._examples[split].hash() if len(self._examples[split]) else ""

    def score(self, state: State | None, split: Split) -> ScoredExamples:
        """Return a split's examples with their scores under a state; None means the base model."""
        weights = np.zeros_like(self._start) if state is None else state + self._start
        scores = self._calls.scores(weights, split)
        labels = self._examples[split].labels
        return ScoredExamples(scores.reshape(len(labels), len(self.labels)), labels)

    def score_evaluated(self, state: State | None, split: Split) -> ScoredExamples:
        """Return all examples of a split with their scores under a state.

        A phone's evaluations are not limited to some examples; see `limit_evaluation`.
        """
        return self.score(state, split)

    def score_in_context(self, split: Split) -> None:
        """Return None: a phone has no prompts into which in-context examples could be put."""

    def own_words(self, state: State) -> None:
        """Return None: a phone's program has no texts from which own words could be learned."""

    def score_own_words(self, state: State, own: OwnWords, split: Split) -> ScoredExamples:
        """Return the scores without own words, because a phone has no own words."""
        return self.score_evaluated(state, split)

    def training_examples(self, state: State, with_features: bool) -> Examples:
        """Return the training examples as scores under a state, labels, and features."""
        scores, labels, _ = self.score(state, Split.TRAIN)
        features = self._calls.features() if with_features else np.zeros((len(labels), 0))
        return Examples(scores.astype(np.float64), labels, features.astype(np.float64))


@dataclass(eq=False)
class _Steps:
    """The steps taken so far in a round.

    Attributes:
        plan: batches and directions of the steps, and their results.
        weights: weights of the adapter, int64 [d], before the pending update.
        pending: update of the latest step.
    """

    plan: LocalStepPlan
    weights: State
    pending: Pending = NOTHING
