"""Steps of a phone's program and of the eager engine, on the same batches and directions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samara.client.estimators.prge import GradientEstimate, LossRequest, run_estimator
from samara.client.forward.grouping import Schedule
from samara.client.training.client_data import LabelledPrompts
from samara.client.training.local_step_plan import LocalStepPlan
from samara.client.training.model_runtime import ModelRuntime
from samara.devices.phone.reference_client.examples import TokenizedExamples
from samara.devices.phone.reference_client.runtime import PhoneProgram
from samara.shared.model.perturbations import Perturbations
from samara.shared.protocol.frames.instructions import TrainInstruction
from samara.shared.protocol.replay import summed, to_float32, zero_state
from samara.shared.tasks.label_scores import cross_entropy

Pending = tuple[NDArray[np.uint64], NDArray[np.int64]]
"""Seeds, and their coefficients with unit 2⁻⁴⁰."""
Engine = Callable[
    [NDArray[np.int64], Pending, LossRequest], tuple[NDArray[np.float64], NDArray[np.int64]]
]
"""Function that maps a state, its pending update and a request to losses [2q] and a new state."""


@dataclass(frozen=True, eq=False)
class Course:
    """The losses and states of an engine, step by step.

    Attributes:
        estimates: estimates of every step.
        losses: float64 [K, 2q], nats.
        state: state after the last step, int64 [d].
    """

    estimates: list[GradientEstimate]
    losses: NDArray[np.float64]
    state: NDArray[np.int64]

    @property
    def gradients(self) -> NDArray[np.float64]:
        """Projected gradients [K, q]."""
        return np.stack([found.gradients for found in self.estimates]).astype(np.float64)


def course(
    engine: Engine,
    size: int,
    instruction: TrainInstruction,
    labels: NDArray[np.int64],
    fed: Sequence[GradientEstimate] | None = None,
) -> Course:
    """Take the steps of an instruction.

    Args:
        engine: engine that computes losses and applies updates.
        size: number of trained numbers, d.
        instruction: train instruction.
        labels: labels of the training examples, int64 [n].
        fed: course whose projected gradients are applied; by default the engine's own.
    """
    steps, state = LocalStepPlan(instruction, 0, labels, label_count=0), zero_state(size)
    pending: Pending = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    estimates, losses = [], []

    def losses_of(request: LossRequest) -> NDArray[np.float64]:
        nonlocal state
        found, state = engine(state, pending, request)
        losses.append(found)
        return found

    for number in range(instruction.steps):
        estimates.append(run_estimator(steps.next_estimator(), losses_of))
        pending = summed(steps.finish_step(fed[number] if fed else estimates[-1]))
    nothing = LossRequest(pending[0], 0.0, np.arange(1))
    return Course(estimates, np.stack(losses), engine(state, pending, nothing)[1])


def eager(runtime: ModelRuntime, data: LabelledPrompts) -> Engine:
    """The resident engine on the first client's examples, all rows in one pass."""
    layout = runtime.layout

    def run(
        state: NDArray[np.int64], pending: Pending, request: LossRequest
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        state = state.copy()
        runtime.backend.fold(state, *pending, layout.distribution)
        z = runtime.backend.directions(request.seeds, layout.size, layout.distribution)
        perturbations = Perturbations.from_arrays(layout, to_float32(state), z, request.epsilon)
        prompts = [data.prompts[row] for row in request.batch]
        scores = runtime.forward.scores(perturbations, prompts, Schedule("both"), whole=True)
        return cross_entropy(scores, data.labels[request.batch]), state

    return run


def compiled(program: PhoneProgram, rows: TokenizedExamples) -> Engine:
    """The engine of a program with as many queries and rows as the steps."""

    def run(
        state: NDArray[np.int64], pending: Pending, request: LossRequest
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        batch = np.resize(request.batch, program.manifest.batch)
        inputs = rows.ids[batch], rows.positions[batch], rows.labels[batch]
        _, losses, after = program.step(state, *inputs, pending, request.seeds, request.epsilon)
        return losses.astype(np.float64).mean(2).reshape(-1), after

    return run
