"""A phone's program against the eager engine, step by step, on one writer's messages.

    python -m benchmarks.devices.phone_loop [--steps 200]

Both take P-RGE steps with the embedded model from the zero state, on the same batches and along the
same directions. First each by its own projected gradients, then the program by those of the eager
engine, which must bring it to the same state. The program applies what a step came to in its next
call; the eager client is weight-only INT8 beside int8, and float32 beside 8da4w.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samara.client.estimators.prge import GradientEstimate, LossRequest, run_estimator
from samara.client.forward.grouping import Schedule
from samara.client.training.client_data import LabelledPrompts
from samara.client.training.local_step_plan import LocalStepPlan
from samara.client.training.model_runtime import ModelRuntime, load_run
from samara.devices.phone.export import ProgramShapes, export_program, prepare_model
from samara.devices.phone.manifest import Delegate, PhoneQuantization
from samara.devices.phone.reference_client.examples import TokenizedExamples, read_examples
from samara.devices.phone.reference_client.runtime import PhoneProgram
from samara.devices.phone.tokenization import examples_as_jsonl
from samara.shared.config import RunConfig
from samara.shared.frames.instructions import SeedPolicy, Split, TrainInstruction
from samara.shared.label_scores import cross_entropy
from samara.shared.model.perturbations import Perturbations
from samara.shared.replay import digest, summed, to_float32, zero_state

CLIENTS, QUERIES, BATCH, LENGTH = 8, 4, 8, 32
EPSILON, LEARNING_RATE = 0.01, 0.1
KINDS: tuple[tuple[Delegate, PhoneQuantization], ...] = (
    ("portable", "none"),
    ("xnnpack", "none"),
    ("portable", "int8"),
    ("xnnpack", "int8"),
    ("xnnpack", "8da4w"),
)

Pending = tuple[NDArray[np.uint64], NDArray[np.int64]]
"""Seeds, and their coefficients with unit 2⁻⁴⁰."""
Engine = Callable[
    [NDArray[np.int64], Pending, LossRequest], tuple[NDArray[np.float64], NDArray[np.int64]]
]
"""Maps a state, what is added to it first, and a request to losses [2q] and the state after."""


@dataclass(frozen=True, eq=False)
class Course:
    """The losses and states of an engine, step by step.

    Attributes:
        estimates: of every step.
        losses: float64 [K, 2q], nats.
        state: int64 [d], after the last step.
    """

    estimates: list[GradientEstimate]
    losses: NDArray[np.float64]
    state: NDArray[np.int64]

    @property
    def gradients(self) -> NDArray[np.float64]:
        """Projected gradients [K, q]."""
        return np.stack([found.gradients for found in self.estimates]).astype(np.float64)


def asked(layout_hash: bytes, steps: int, **changes: Any) -> TrainInstruction:
    """Return the instruction that both engines carry out."""
    fields: dict[str, Any] = {
        "run_id": bytes(8),
        "round": 1,
        "track": 0,
        "steps": steps,
        "queries": QUERIES,
        "batch": BATCH,
        "seed_policy": SeedPolicy.INDEPENDENT,
        "root": 0,
        "epsilon": EPSILON,
        "learning_rate": LEARNING_RATE,
        "clip": 0.0,
        "deadline": 0.0,
        "layout_hash": layout_hash,
        "start_digest": bytes(32),
    }
    return TrainInstruction(**(fields | changes))


def course(
    engine: Engine,
    size: int,
    instruction: TrainInstruction,
    labels: NDArray[np.int64],
    fed: Sequence[GradientEstimate] | None = None,
) -> Course:
    """Take the steps of an instruction.

    Args:
        engine: that scores and applies.
        size: d.
        instruction: what to do.
        labels: int64 [n], of the training examples.
        fed: whose projected gradients are applied; by default the engine's own.
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
    """A program of as many queries and rows as the steps have."""

    def run(
        state: NDArray[np.int64], pending: Pending, request: LossRequest
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        batch = np.resize(request.batch, program.manifest.batch)
        inputs = rows.ids[batch], rows.positions[batch], rows.labels[batch]
        _, losses, after = program.step(state, *inputs, pending, request.seeds, request.epsilon)
        return losses.astype(np.float64).mean(2).reshape(-1), after

    return run


def compared(found: Course, expected: Course) -> str:
    """Differences of the losses, of the projected gradients, and of the states."""
    loss = np.abs(found.losses - expected.losses)
    gradient = np.abs(found.gradients - expected.gradients)
    apart = np.linalg.norm(to_float32(found.state) - to_float32(expected.state))
    return (
        f"loss: largest {loss.max():.2g}, mean {loss.mean():.2g}; "
        f"g: largest {gradient.max():.2g}, mean {gradient.mean():.2g}; "
        f"states: {apart / np.linalg.norm(to_float32(expected.state)):.2g} apart"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.pte"
        for delegate, quantization in KINDS:
            kind = "int8" if quantization == "int8" else "none"
            settings = {"model.max-length": LENGTH, "model.quantization": kind, "threads": 1}
            settings["adapter.layers"] = "top:1"
            config = RunConfig.of(settings, "bench")
            runtime, source = load_run(config)
            data = source.share_of(0, CLIENTS)
            ready = prepare_model(config, quantization)
            export_program(
                ready, ProgramShapes(QUERIES, BATCH, LENGTH), quantization, delegate, file
            )
            program, rows = PhoneProgram(file), file.with_suffix(".jsonl")
            rows.write_text(examples_as_jsonl(data))
            train = read_examples(rows, program.manifest)[Split.TRAIN]
            layout, phone = runtime.layout, compiled(program, train)
            instruction = asked(layout.hash, steps)
            expected = course(
                eager(runtime, data.tokenized(Split.TRAIN)), layout.size, instruction, train.labels
            )
            own = course(phone, layout.size, instruction, train.labels)
            fed = course(phone, layout.size, instruction, train.labels, expected.estimates)
            same = digest(layout.hash, fed.state) == digest(layout.hash, expected.state)
            first, last = (part.mean() for part in (expected.losses[:10], expected.losses[-10:]))
            size = np.sqrt(np.mean(expected.gradients**2))
            print(f"{delegate}, {quantization}: d = {layout.size}, {steps} steps")
            print(f"  eager: loss of ten steps {first:.4f} → {last:.4f}, g about {size:.2g}")
            print(f"  each by its own g: {compared(own, expected)}")
            print(f"  the same g's: {compared(fed, expected)}; same digest: {same}", flush=True)


if __name__ == "__main__":
    main()
