"""Steps of a phone's program on a Llama shape of 34 M parameters: what they cost beside eager ones.

    python -m benchmarks.devices.phone_step make --folder FOLDER [--layers top:1] \\
        [--queries 2] [--batch 2]
    python -m benchmarks.devices.phone_step time|memory --folder FOLDER [the same]

`make` exports programs into a folder; `time` steps through them in turns; `memory` takes two steps
with each in a process of its own. A call of a program carries the rows of all 2q points; beside it
stand programs that carry those of one sign and are called twice. Random weights: only shapes
matter. The eager engine keeps no outputs of the trunk from one step to the next, as a program keeps
none. Every engine has one thread.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.speed.shapes import TASK, random_base, timed
from samara.client.forward.body import PerturbedBody
from samara.client.forward.grouping import Grouping, Schedule
from samara.client.forward.peak_memory import keep_freed_memory
from samara.client.forward.resident import ResidentForward
from samara.devices.phone.export import PreparedModel, ProgramShapes, export_program, step_inputs
from samara.devices.phone.lowering import Method, lower_to_executorch
from samara.devices.phone.manifest import Delegate, Manifest, PhoneQuantization
from samara.devices.phone.program import ReplayModule, ScoresModule, Words
from samara.devices.phone.quantization import quantize_to_4_bit, use_batched_products
from samara.devices.phone.reference_client.runtime import load_module, run_method
from samara.shared.directions import DIRECTION_BITS, directions
from samara.shared.label_scores import cross_entropy
from samara.shared.layout import Layout
from samara.shared.model.dual_forwarding import DualForwarding
from samara.shared.model.loading import BaseModel
from samara.shared.model.lora_fa import Adapter, inject
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.replay_torch import directions as drawn
from samara.shared.model.scorers import CausalScorer, Prompt
from samara.shared.replay import STATE_BITS, zero_state
from samara.shared.sections import AdapterSettings

SHAPE, LENGTH, EPSILON, CPU = "llama-34m", 64, 0.01, torch.device("cpu")
KINDS: dict[str, tuple[Delegate, PhoneQuantization]] = {
    "portable": ("portable", "none"),
    "xnnpack": ("xnnpack", "none"),
    "xnnpack-int8": ("xnnpack", "int8"),
    "xnnpack-8da4w": ("xnnpack", "8da4w"),
}
EAGER: dict[str, Grouping] = {"eager": "both", "eager-twice": "outer"}
TWICE = "-twice"
REPETITIONS, SECONDS = 7, 10.0
"""The number of steps of each kind: at most this, and fewer where they would take longer."""


class OneSign(nn.Module):
    """`samara.devices.phone.program.Step` at points of one sign, that of the ε it is given."""

    def __init__(self, scores: ScoresModule, layout: Layout) -> None:
        super().__init__()
        self.scores, self.replay, self.layout = scores, ReplayModule(layout), layout

    def forward(
        self,
        state: Tensor,
        ids: Tensor,
        positions: Tensor,
        labels: Tensor,
        previous_seeds: Tensor,
        previous_coefficients: Tensor,
        seeds: Tensor,
        epsilon: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores float32 [q, B, labels], losses float32 [q, B], and the state."""
        (state,) = self.replay(state, previous_seeds, previous_coefficients)
        z = drawn(seeds, self.replay.table, self.layout.size, self.layout.distribution)
        step = z.to(torch.float32) * (epsilon * 2.0**-DIRECTION_BITS)
        perturbations = (state.to(torch.float32) * 2.0**-STATE_BITS + step)[None]
        scores, losses = self.scores(
            DualForwarding(self.layout, perturbations), ids, positions, labels
        )
        return scores, losses, state


def model(layers: str, quantization: PhoneQuantization) -> tuple[BaseModel, Adapter, CausalScorer]:
    """The shape with adapters of rank 2 on q and v."""
    base = random_base(SHAPE, "int8" if quantization == "int8" else "none", torch.float32, CPU)
    scorer = CausalScorer(base, TASK, LENGTH)
    return base, inject(base, AdapterSettings(layers=layers), scorer.labels), scorer


def make(kind: str, layers: str, shapes: ProgramShapes, folder: Path) -> dict[str, Any]:
    """Export a program into a folder; one of a single sign stands beside the whole one."""
    delegate, quantization = KINDS[kind.removesuffix(TWICE)]
    base, adapter, scorer = model(layers, quantization)
    layout = adapter.layout
    tokens = tuple(tokens[0] for tokens in scorer.label_tokens)
    scores = ScoresModule(base, adapter, Words(base, list(tokens)))
    if quantization == "int8":
        use_batched_products(base)
    file = folder / f"{kind}.pte"
    begun = time.perf_counter()
    if kind.endswith(TWICE):
        if quantization == "8da4w":
            quantize_to_4_bit(base)
        half = Method(OneSign(scores, layout), _inputs(kind, folder))
        file.write_bytes(
            lower_to_executorch({"forward": half}, delegate, (), quantization == "8da4w")
        )
    else:
        ready = PreparedModel(base, layout, scores, tuple(TASK.words), tokens)
        export_program(ready, shapes, quantization, delegate, file)
    seconds, size = time.perf_counter() - begun, file.stat().st_size / 2**20
    return {"d": layout.size, "seconds": seconds, "peak": _peak(), "file": size}


def eager(layers: str, grouping: Grouping, shapes: ProgramShapes) -> Callable[[], object]:
    """A step without its update, as a program's call is."""
    base, adapter, scorer = model(layers, "none")
    forward = ResidentForward(adapter, scorer, PerturbedBody(base, adapter.first_block))
    ids = np.random.default_rng(0).integers(12, 8_000, (shapes.batch, LENGTH)).tolist()
    prompts = [Prompt((tuple(row),), ((LENGTH - 1,),)) for row in ids]
    center = np.zeros(adapter.layout.size, np.float32)
    seeds = np.arange(shapes.queries, dtype=np.uint64)

    def step() -> NDArray[np.float64]:
        z = directions(seeds, adapter.layout.size, "gaussian")
        perturbations = Perturbations.from_arrays(adapter.layout, center, z, EPSILON)
        scores = forward.scores(perturbations, prompts, Schedule(grouping))
        return cross_entropy(scores, np.zeros(len(prompts), np.int64))

    return step


def compiled(kind: str, folder: Path) -> Callable[[], object]:
    """A step by one call of a program, or by two."""
    arrays = [tensor.numpy() for tensor in _inputs(kind, folder)]
    module = load_module(folder / f"{kind}.pte")
    signs = (1, -1) if kind.endswith(TWICE) else (1,)

    def step() -> list[Any]:
        return [
            output.numpy().copy()
            for sign in signs
            for output in run_method(module, "forward", [*arrays[:-1], sign * arrays[-1]])
        ]

    return step


def steps_of(kind: str, layers: str, shapes: ProgramShapes, folder: Path) -> Callable[[], object]:
    """Time steps of any kind on one thread."""
    from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool

    torch.set_num_threads(1)
    _unsafe_reset_threadpool(1)
    return eager(layers, EAGER[kind], shapes) if kind in EAGER else compiled(kind, folder)


def memory(kind: str, layers: str, shapes: ProgramShapes, folder: Path) -> dict[str, Any]:
    """MiB that are this process's own, over what they were with all libraries loaded; its peak."""
    import executorch.extension.pybindings.portable_lib  # noqa: F401

    process = psutil.Process()
    before = process.memory_full_info().uss
    step = steps_of(kind, layers, shapes, folder)
    for _ in range(2):
        step()
    return {"own": (process.memory_full_info().uss - before) / 2**20, "peak": _peak()}


def times(
    kinds: list[str], layers: str, shapes: ProgramShapes, folder: Path
) -> dict[str, list[float]]:
    """Seconds of the steps of all kinds, which take turns."""
    keep_freed_memory()
    steps = {kind: steps_of(kind, layers, shapes, folder) for kind in kinds}
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    first = {kind: timed(step, CPU) for kind, step in steps.items()}
    for repetition in range(REPETITIONS):
        for kind, step in steps.items():
            if not repetition or repetition < SECONDS / first[kind]:
                found[kind].append(timed(step, CPU))
    return found


def _inputs(kind: str, folder: Path) -> tuple[Tensor, ...]:
    """Return the inputs of a call: those of the whole program's self-check."""
    manifest = Manifest.read(folder / f"{kind.removesuffix(TWICE)}.pte")
    return step_inputs(zero_state(Layout.from_json(manifest.layout).size), manifest.check)


def _peak() -> float:
    """MiB of this process, resident, at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _elsewhere(stage: str, kind: str, options: list[str]) -> dict[str, Any]:
    """Return the figures that a process of its own measures."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.devices.phone_step",
        stage,
        *options,
        "--kinds",
        kind,
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("stage", choices=("make", "time", "memory", "make-one", "memory-one"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--layers", default="top:1")
    parser.add_argument("--queries", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", help="default: all")
    given = parser.parse_args()
    shapes = ProgramShapes(given.queries, given.batch, LENGTH)
    own = given.layers, shapes, given.folder
    options = [f"--folder={given.folder}", f"--layers={given.layers}"]
    options += [f"--queries={given.queries}", f"--batch={given.batch}"]
    programs = [f"{kind}{calls}" for kind in KINDS for calls in ("", TWICE)]
    kinds = given.kinds or [*([] if given.stage == "make" else EAGER), *programs]
    if given.stage == "make-one":
        print(json.dumps(make(kinds[0], *own)))
        return
    if given.stage == "memory-one":
        print(json.dumps(memory(kinds[0], *own)))
        return
    print(f"{given.layers}, q = {shapes.queries}, B = {shapes.batch}, {LENGTH} tokens", flush=True)
    if given.stage == "time":
        found = times(kinds, *own)
        for kind, seconds in found.items():
            ratios = [one / other for one, other in zip(found[kinds[0]], seconds, strict=False)]
            print(
                f"{kind}: {1e3 * median(seconds):.0f} ms ({len(seconds)} steps, "
                f"{1e3 * min(seconds):.0f} to {1e3 * max(seconds):.0f}), "
                f"{median(ratios):.2f} times as fast as {kinds[0]}"
            )
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    for kind in kinds:
        if given.stage == "make":
            made = _elsewhere("make-one", kind, options)
            what = f"d = {made['d']}, {made['seconds']:.1f} s, file {made['file']:.1f} MiB"
        else:
            made = _elsewhere("memory-one", kind, options)
            what = f"own memory {made['own']:.0f} MiB"
        print(f"{kind}: {what}, peak of the process {made['peak']:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
