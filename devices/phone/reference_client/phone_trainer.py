"""Training and evaluation by calls of a phone's program."""

import json
import platform
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from client.estimators.prge import run_estimator
from client.training.local_step_plan import LocalStepPlan, smallest_batch
from devices.phone.reference_client.adapter_calls import NOTHING, AdapterCalls
from devices.phone.reference_client.examples import TokenizedExamples
from devices.phone.reference_client.readout_calls import KEPT_BYTES, ReadoutCalls
from devices.phone.reference_client.readout_program import ReadoutProgram
from devices.phone.reference_client.runtime import PhoneProgram, ProgramBackend
from shared.frames.evaluation import EvaluationColumn
from shared.frames.hello import SPLIT_EXAMPLES, Hello
from shared.frames.instructions import Split, TrainInstruction, token_of
from shared.frames.report import Report
from shared.replay import check_fits, summed


class PhoneTrainer:
    """A phone's program together with its examples.

    Args:
        program: program of the model and adapter.
        examples: examples by split.
        kept_bytes: most bytes of a readout's representations in memory.

    Attributes:
        layout: layout of the adapter.
        model_id: model id of the base model, 32 bytes.
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
        self.layout = program.layout
        self.model_id = bytes.fromhex(program.manifest.model_id)
        self._start = program.manifest.start_values()
        self.backend = ProgramBackend(program)

    def hello(self, client: int, round_number: int) -> Hello:
        """Return the hello with which this phone introduces itself."""
        manifest = self._program.manifest
        facts = {
            "clients": 0,
            SPLIT_EXAMPLES: {s.name.lower(): len(e.labels) for s, e in self._examples.items()},
            "quantization": manifest.quantization,
            "device": f"phone program, {manifest.delegate}",
            "platform": platform.platform(),
            "executorch": version("executorch"),
            "replay": self.backend.name,
        }
        return Hello(
            client,
            len(self._examples[Split.TRAIN]),
            round_number,
            self.model_id,
            manifest.layout,
            json.dumps(facts, sort_keys=True),
        )

    def generations_of(self, split: Split) -> tuple[str, ...]:
        """Return the hash of a split's examples in hex, which all came together; if there are any.

        The hash does not depend on their order.
        """
        return (self._examples[split].hash(),) if len(self._examples[split]) else ()

    def smallest_batch(self, instruction: TrainInstruction) -> int:
        """Return the number of examples in the smallest batch of an instruction's steps."""
        labels = self._examples[Split.TRAIN].labels
        return smallest_batch(instruction, labels, len(self._program.manifest.words))

    def train(self, instruction: TrainInstruction, state: NDArray[np.int64], client: int) -> Report:
        """Take K local steps from a state and return the report; the state itself is not changed.

        A step's update is applied at the beginning of the next step. With adapters inside the model
        a step with as many queries and examples as the program has so is one call. The program and
        the steps are given the adapter's weights, which are the state plus the run's start.

        Raises:
            TrainingError: if a loss is not finite.
            ReplayError: if a local step does not fit the exact state.
        """
        labels, pending = self._examples[Split.TRAIN].labels, NOTHING
        steps = LocalStepPlan(instruction, client, labels, len(self._program.manifest.words))
        weights = state + self._start
        for _ in range(instruction.steps):
            work = self._calls.begin_step(weights, pending)
            added = steps.finish_step(run_estimator(steps.next_estimator(), work.losses_of))
            weights = work.state
            check_fits(weights - self._start, [one_pass for _, one_pass in added])
            pending = summed(added)
        return steps.report(token_of(instruction.encode()))

    def figures(self, name: str, state: NDArray[np.int64], split: Split) -> EvaluationColumn:
        """Evaluate a state on a split: mean loss and confusion counts."""
        labels = len(self._program.manifest.words)
        counts = np.zeros((labels, labels), np.int64)
        losses = []
        for rows, scores, some in self._calls.evaluate(state + self._start, split):
            losses.append(some)
            np.add.at(counts, (self._examples[split].labels[rows], scores.argmax(1)), 1)
        mean = float(np.concatenate(losses).astype(np.float64).mean()) if losses else 0.0
        return EvaluationColumn(name, mean, counts)

    def check_layout(self, layout_hash: bytes) -> None:
        """Check that an instruction is for this program's layout.

        Raises:
            LayoutError: if the layouts differ.
        """
        self.layout.check_hash(layout_hash, "export the program with the run's model and adapter")
