"""Training and evaluation by calls of a phone's program."""

import json
import platform
from collections.abc import Iterator
from importlib.metadata import version
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from client.estimators.prge import LossRequest, run_estimator
from client.training.local_step_plan import LocalStepPlan
from devices.phone.reference_client.examples import TokenizedExamples
from devices.phone.reference_client.runtime import PhoneProgram, ProgramBackend
from shared.frames.evaluation import EvaluationColumn
from shared.frames.hello import Hello
from shared.frames.instructions import Split, TrainInstruction, token_of
from shared.frames.report import Report
from shared.replay import check_fits, summed

_Number = TypeVar("_Number", bound=np.generic)
_NO_SEEDS = np.zeros(0, np.uint64)
_Pending = tuple[NDArray[np.uint64], NDArray[np.int64]]
_NOTHING: _Pending = (_NO_SEEDS, np.zeros(0, np.int64))


class PhoneTrainer:
    """A phone's program together with its examples.

    Attributes:
        layout: layout of the adapter.
        model_id: model id of the base model, 32 bytes.
        backend: backend that replays by the program.
    """

    def __init__(self, program: PhoneProgram, examples: dict[Split, TokenizedExamples]) -> None:
        self._program, self._examples = program, examples
        self.layout = program.layout
        self.model_id = bytes.fromhex(program.manifest.model_id)
        self.backend = ProgramBackend(program)

    def hello(self, client: int, round_number: int) -> Hello:
        """Return the hello with which this phone introduces itself."""
        manifest = self._program.manifest
        facts = {
            "clients": 0,
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

    def training_hash(self) -> str:
        """Return a hash of the training examples in hex, whatever their order."""
        return self._examples[Split.TRAIN].hash()

    def train(self, instruction: TrainInstruction, state: NDArray[np.int64], client: int) -> Report:
        """Take K local steps from a state and return the report; the state itself is not changed.

        A step's update is applied in the first call of the next step, so that a step with as many
        queries and examples as the program has is one call.

        Raises:
            TrainingError: if a loss is not finite.
            ReplayError: if a local step does not fit the exact state.
        """
        examples, pending = self._examples[Split.TRAIN], _NOTHING
        steps = LocalStepPlan(
            instruction, client, examples.labels, len(self._program.manifest.words)
        )
        for _ in range(instruction.steps):
            work = _StepCalls(self._program, examples, state, pending)
            added = steps.finish_step(run_estimator(steps.next_estimator(), work.losses_of))
            state = work.state
            check_fits(state, [one_pass for _, one_pass in added])
            pending = summed(added)
        return steps.report(token_of(instruction.encode()))

    def figures(self, name: str, state: NDArray[np.int64], split: Split) -> EvaluationColumn:
        """Evaluate a state on a split by ``forward`` with ε = 0: mean loss and confusion counts."""
        examples, labels = self._examples[split], len(self._program.manifest.words)
        counts = np.zeros((labels, labels), np.int64)
        losses = []
        calls = _StepCalls(self._program, examples, state, _NOTHING)
        for batch in _batches(np.arange(len(examples)), self._program.manifest.batch):
            scores, loss = calls.run(batch, _NO_SEEDS, 0.0)
            losses.append(loss[0, 0])
            np.add.at(counts, (examples.labels[batch], scores[0, 0].argmax(1)), 1)
        mean = float(np.concatenate(losses).astype(np.float64).mean()) if losses else 0.0
        return EvaluationColumn(name, mean, counts)

    def check_layout(self, layout_hash: bytes) -> None:
        """Check that an instruction is for this program's layout.

        Raises:
            LayoutError: if the layouts differ.
        """
        self.layout.check_hash(layout_hash, "export the program with the run's model and adapter")


class _StepCalls:
    """The calls of ``forward`` in one step; the first applies the update of the step before.

    Attributes:
        state: state int64 [d] after the latest call.
    """

    def __init__(
        self,
        program: PhoneProgram,
        examples: TokenizedExamples,
        state: NDArray[np.int64],
        pending: _Pending,
    ) -> None:
        self._program, self._examples = program, examples
        seeds, coefficients = pending
        more = max(0, len(seeds) - program.manifest.queries)
        # a call applies at most q coefficients; `replay` applies the others
        self.state = program.replay(state, seeds[:more], coefficients[:more])
        self._pending = seeds[more:], coefficients[more:]

    def losses_of(self, request: LossRequest) -> NDArray[np.float64]:
        """Return the losses of a request, float64 [signs · q], or [1] of the centre."""
        if not len(request.seeds):
            return np.array([self._mean_losses(request.batch, _NO_SEEDS, 0.0)[0, 0]])
        parts = [
            self._mean_losses(request.batch, some, request.epsilon)
            for some in _batches(request.seeds, self._program.manifest.queries)
        ]
        both = np.concatenate(parts, axis=1)
        return np.concatenate([both[0 if sign > 0 else 1] for sign in request.signs])

    def run(
        self, batch: NDArray[np.int64], seeds: NDArray[np.uint64], epsilon: float
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return scores [2, q, n, labels] and losses [2, q, n] of at most B examples."""
        count, examples = len(batch), self._examples
        filled = np.resize(batch, self._program.manifest.batch)
        scores, losses, self.state = self._program.step(
            self.state,
            examples.ids[filled],
            examples.positions[filled],
            examples.labels[filled],
            self._pending,
            seeds,
            epsilon,
        )
        self._pending = _NOTHING
        return scores[:, :, :count], losses[:, :, :count]

    def _mean_losses(
        self, batch: NDArray[np.int64], seeds: NDArray[np.uint64], epsilon: float
    ) -> NDArray[np.float64]:
        """Return the mean losses over a batch of any size, float64 [2, q]."""
        parts = [
            self.run(some, seeds, epsilon)[1]
            for some in _batches(batch, self._program.manifest.batch)
        ]
        means: NDArray[np.float64] = np.concatenate(parts, 2).astype(np.float64).mean(2)
        return means


def _batches(values: NDArray[_Number], size: int) -> Iterator[NDArray[_Number]]:
    return (values[start : start + size] for start in range(0, len(values), size))
