"""Training and evaluation by nothing but calls of a program."""

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
    """A program with a phone's examples.

    Attributes:
        layout: of the adapter.
        model_id: of the base model, 32 bytes.
        backend: what replays.
    """

    def __init__(self, program: PhoneProgram, rows: dict[Split, TokenizedExamples]) -> None:
        self._program, self._rows = program, rows
        self.layout = program.layout
        self.model_id = bytes.fromhex(program.manifest.model_id)
        self.backend = ProgramBackend(program)

    def hello(self, device: int, round_number: int) -> Hello:
        """How this phone introduces itself."""
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
            device,
            len(self._rows[Split.TRAIN]),
            round_number,
            self.model_id,
            manifest.layout,
            json.dumps(facts, sort_keys=True),
        )

    def train(self, instruction: TrainInstruction, state: NDArray[np.int64], device: int) -> Report:
        """K local steps from a state, which itself is not moved by them.

        What a step comes to is applied in the first call of the next one, so that a step of as
        many queries and rows as the program has is one call.

        Raises:
            TrainingError: if a loss is not finite.
            ReplayError: if a local step does not fit the exact state.
        """
        rows, pending = self._rows[Split.TRAIN], _NOTHING
        steps = LocalStepPlan(instruction, device, rows.labels, len(self._program.manifest.words))
        for _ in range(instruction.steps):
            work = _Calls(self._program, rows, state, pending)
            added = steps.finish_step(run_estimator(steps.next_estimator(), work.losses_of))
            state = work.state
            check_fits(state, [one_pass for _, one_pass in added])
            pending = summed(added)
        return steps.report(token_of(instruction.encode()))

    def figures(self, name: str, state: NDArray[np.int64], split: Split) -> EvaluationColumn:
        """Loss and confusion of a state on a split: ``forward`` with ε = 0."""
        rows, labels = self._rows[split], len(self._program.manifest.words)
        counts = np.zeros((labels, labels), np.int64)
        losses = []
        calls = _Calls(self._program, rows, state, _NOTHING)
        for batch in _batches(np.arange(len(rows)), self._program.manifest.batch):
            scores, loss = calls.run(batch, _NO_SEEDS, 0.0)
            losses.append(loss[0, 0])
            np.add.at(counts, (rows.labels[batch], scores[0, 0].argmax(1)), 1)
        mean = float(np.concatenate(losses).astype(np.float64).mean()) if losses else 0.0
        return EvaluationColumn(name, mean, counts)

    def check_layout(self, layout_hash: bytes) -> None:
        """Refuse an instruction for another adapter.

        Raises:
            LayoutError: if the layouts differ.
        """
        self.layout.check_hash(layout_hash, "export the program with the run's model and adapter")


class _Calls:
    """The calls of one step; the first of them applies what the step before came to.

    Attributes:
        state: int64 [d], as far as it is known.
    """

    def __init__(
        self,
        program: PhoneProgram,
        rows: TokenizedExamples,
        state: NDArray[np.int64],
        pending: _Pending,
    ) -> None:
        self._program, self._rows = program, rows
        seeds, coefficients = pending
        more = max(0, len(seeds) - program.manifest.queries)
        # more than one call applies goes by `replay` before
        self.state = program.replay(state, seeds[:more], coefficients[:more])
        self._pending = seeds[more:], coefficients[more:]

    def losses_of(self, request: LossRequest) -> NDArray[np.float64]:
        """Losses of a request, float64 [signs · q]; [1] of the centre."""
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
        """Scores [2, q, n, labels] and losses [2, q, n] of at most B rows."""
        count, rows = len(batch), self._rows
        filled = np.resize(batch, self._program.manifest.batch)
        scores, losses, self.state = self._program.step(
            self.state,
            rows.ids[filled],
            rows.positions[filled],
            rows.labels[filled],
            self._pending,
            seeds,
            epsilon,
        )
        self._pending = _NOTHING
        return scores[:, :, :count], losses[:, :, :count]

    def _mean_losses(
        self, batch: NDArray[np.int64], seeds: NDArray[np.uint64], epsilon: float
    ) -> NDArray[np.float64]:
        """Means over a batch of any size: float64 [2, q]."""
        parts = [
            self.run(some, seeds, epsilon)[1]
            for some in _batches(batch, self._program.manifest.batch)
        ]
        means: NDArray[np.float64] = np.concatenate(parts, 2).astype(np.float64).mean(2)
        return means


def _batches(values: NDArray[_Number], size: int) -> Iterator[NDArray[_Number]]:
    return (values[start : start + size] for start in range(0, len(values), size))
