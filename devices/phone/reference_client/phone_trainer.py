"""Training and evaluation by calls of a phone's program."""

import json
import platform
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from samara.client.estimators.prge import run_estimator
from samara.client.personal.learner import ScoredExamples, State
from samara.client.training.interrupted_steps import InterruptedSteps
from samara.client.training.local_step_plan import LocalStepPlan, smallest_batch
from samara.devices.phone.reference_client.adapter_calls import NOTHING, AdapterCalls, Pending
from samara.devices.phone.reference_client.examples import TokenizedExamples
from samara.devices.phone.reference_client.readout_calls import KEPT_BYTES, ReadoutCalls
from samara.devices.phone.reference_client.readout_program import ReadoutProgram
from samara.devices.phone.reference_client.runtime import PhoneProgram, ProgramBackend
from samara.shared.frames.evaluation import EvaluationColumn
from samara.shared.frames.hello import SPLIT_EXAMPLES, Hello
from samara.shared.frames.instructions import Split, TrainInstruction, token_of
from samara.shared.frames.report import Report
from samara.shared.label_scores import evaluation_column
from samara.shared.replay import check_fits, summed


class PhoneTrainer:
    """A phone's program together with its examples.

    Args:
        program: program of the model and adapter.
        examples: examples by split.
        kept_bytes: most bytes of a readout's representations in memory.

    Attributes:
        layout: layout of the adapter.
        model_id: model id of the base model, 32 bytes.
        labels: label words of the program.
        backend: backend that replays by the program.
    """

    def __init__(
        self,
        program: PhoneProgram | ReadoutProgram,
        examples: dict[Split, TokenizedExamples],
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._program, self._examples = program, examples
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

    def hello(self, client: int, round_number: int, hides_examples: bool = False) -> Hello:
        """Return the hello with which this phone introduces itself.

        Args:
            client: client index.
            round_number: last round in the phone's state.
            hides_examples: whether it says nothing of its examples, not even how many there are.
        """
        manifest = self._program.manifest
        counts = {split.name.lower(): len(own.labels) for split, own in self._examples.items()}
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
            client,
            0 if hides_examples else len(self._examples[Split.TRAIN]),
            round_number,
            self.model_id,
            manifest.layout,
            json.dumps(facts, sort_keys=True),
        )

    def generations_of(self, split: Split) -> tuple[str, ...]:
        """Return the hash of a split's examples in hex, which all came together; if there are any.

        The hash does not depend on their order.
        """
        return (hash_,) if (hash_ := self.data_hash(split)) else ()

    def smallest_batch(self, instruction: TrainInstruction) -> int:
        """Return the number of examples in the smallest batch of an instruction's steps."""
        return smallest_batch(instruction, self._examples[Split.TRAIN].labels, len(self.labels))

    def train(
        self,
        instruction: TrainInstruction,
        state: State,
        client: int,
        interrupted: "InterruptedSteps[_Steps] | None" = None,
    ) -> Report:
        """Take K local steps from a state and return the report; the state itself is not changed.

        A step's update is applied at the beginning of the next step. With adapters inside the model
        a step with as many queries and examples as the program has so is one call. The program and
        the steps are given the adapter's weights, which are the state plus the run's start.

        Args:
            instruction: instruction of the round.
            state: int64 [d].
            client: client index.
            interrupted: keeps finished steps if an exception interrupts the round.

        Raises:
            TrainingError: if a loss is not finite.
            ReplayError: if a local step does not fit the exact state.
        """
        examples, token = self._examples[Split.TRAIN], token_of(instruction.encode())
        plan = LocalStepPlan(instruction, client, examples.labels, len(self.labels))
        steps = _Steps(plan, state + self._start)
        if interrupted:
            steps = interrupted.resume(token, examples, steps)
        for _ in range(steps.plan.steps_taken, instruction.steps):
            work = self._calls.begin_step(steps.weights, steps.pending)
            estimate = run_estimator(steps.plan.next_estimator(), work.losses_of)
            added = steps.plan.finish_step(estimate)
            steps.weights, steps.pending = work.state, summed(added)
            check_fits(work.state - self._start, [one_pass for _, one_pass in added])
        return steps.plan.report(token)

    def data_hash(self, split: Split) -> str:
        """Return a hash of a split's examples in hex, whatever their order; empty without any."""
        return self._examples[split].hash() if len(self._examples[split]) else ""

    def score(self, state: State | None, split: Split) -> ScoredExamples:
        """Return a split's examples with their scores under a state; None is the base model."""
        weights = np.zeros_like(self._start) if state is None else state + self._start
        scores, labels = self._calls.scores(weights, split), self._examples[split].labels
        return ScoredExamples(scores.reshape(len(labels), len(self.labels)), labels)

    def features(self) -> NDArray[np.float32]:
        """Return what a readout alone reads of the training examples, float32 [n, features]."""
        return self._calls.features()

    def figures(self, name: str, state: State, split: Split) -> EvaluationColumn:
        """Evaluate a state on a split: mean loss and confusion counts."""
        return evaluation_column(name, *self.score(state, split))

    def check_layout(self, layout_hash: bytes) -> None:
        """Check that an instruction is for this program's layout.

        Raises:
            LayoutError: if the layouts differ.
        """
        self.layout.check_hash(layout_hash, "export the program with the run's model and adapter")


@dataclass(eq=False)
class _Steps:
    """The steps of a round so far.

    Attributes:
        plan: batches and directions of the steps, and their results.
        weights: weights of the adapter, int64 [d], before the pending update.
        pending: update of the latest step.
    """

    plan: LocalStepPlan
    weights: State
    pending: Pending = NOTHING
