"""The memory of methods beside the memory of inference, on one batch of one model (MeZO, table 12).

    python -m benchmarks.speed.method_memory [--shape llama-34m] [--batch 16] [--tokens 64]

Every method takes a step in a separate process, on random weights in float32. There are two
measures: the peak bytes of the weights and all tensors of a step, and the peak resident memory of
the process, with Python and its libraries. All processes, including that of inference, load the
compiled generator of directions, whose memory does not depend on the model. `--plain` loads the
generator only for methods that use it.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.speed.shapes import SHAPES, TASK, random_base
from samara.client.forward.body import PerturbedBody
from samara.client.forward.grouping import Schedule
from samara.client.forward.peak_memory import measure_peak_memory
from samara.client.forward.resident import ResidentForward
from samara.client.spaces.full import FullSpace
from samara.client.tuning.descent import SGD, Descent, UpdateStep
from samara.client.tuning.training_loss import summed_loss
from samara.shared.machine.process import peak_memory_bytes
from samara.shared.model.lora_fa import empty_adapter
from samara.shared.model.perturbations import PerturbedAdapters
from samara.shared.model.scorers import CausalScorer, Prompt
from samara.shared.protocol.replay_numba import NumbaBackend
from samara.shared.tasks.label_scores import cross_entropy

METHODS = ("inference", "MeZO, in place", "MeZO, copy", "forward mode", "SGD", "Adam")
EPSILON, RATE = 1e-3, 1e-6
SEEDS = np.arange(1, dtype=np.uint64)
CPU = torch.device("cpu")


class Rig:
    """A model and a batch for the measurements.

    Attributes:
        weights: bytes of the model's parameters.
    """

    def __init__(self, shape: str, batch: int, tokens: int) -> None:
        self.base = random_base(shape, "none", torch.float32, CPU)
        adapter, self._no_adapters = empty_adapter()
        scorer = CausalScorer(self.base, TASK, tokens)
        self._forward = ResidentForward(adapter, scorer, PerturbedBody(self.base, 0))
        ids = np.random.default_rng(0).integers(12, 500, (batch, tokens))
        self._prompts = [Prompt((tuple(row),), ((tokens - 1,),)) for row in ids.tolist()]
        self._labels = np.arange(batch) % 2
        self.weights = sum(parameter.nbytes for parameter in self.base.network.parameters())

    def step(self, method: str) -> Callable[[], object]:
        """Return a function that takes a complete step of a method, with all its allocations."""
        match method:
            case "inference":
                return lambda: self._scores(self._no_adapters)
            case "MeZO, in place" | "MeZO, copy":
                return lambda: self._mezo(method == "MeZO, copy")
            case "forward mode":
                return self._forward_mode
        return lambda: self._first_order(method)

    def _scores(
        self, adapters: PerturbedAdapters
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return self._forward.scores(adapters, self._prompts, Schedule("sequential"))

    def _mezo(self, keep_copy: bool) -> None:
        space = FullSpace(self.base, NumbaBackend(1), keep_copy)
        scores = space.evaluate(self._scores, SEEDS, EPSILON)
        plus, minus = np.split(cross_entropy(scores, self._labels), 2)
        gradients = ((plus - minus) / (2 * EPSILON)).astype(np.float32)
        Descent(space, SGD()).step(UpdateStep(SEEDS, gradients, RATE, EPSILON))

    def _loss(self, adapters: PerturbedAdapters) -> torch.Tensor:
        scores = self._forward.score_pass(adapters, self._prompts)[0]
        return summed_loss(scores, self._labels, "cross-entropy")

    def _forward_mode(self) -> None:
        FullSpace(self.base, NumbaBackend(1), keep_copy=False).derivative(self._loss, 0)

    def _first_order(self, method: str) -> None:
        parameters = [p.requires_grad_(True) for p in self.base.network.parameters()]
        kind = torch.optim.Adam if method == "Adam" else torch.optim.SGD
        optimizer = kind(parameters, RATE)
        self._loss(self._no_adapters).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def measure(
    method: str, shape: str, batch: int, tokens: int, plain: bool = False
) -> dict[str, int]:
    """Take a step in this process, and return the bytes of each measure.

    Args:
        method: a name in `METHODS`.
        shape: name of the model's shape.
        batch: number of examples.
        tokens: tokens of an example.
        plain: whether only methods that use the generator of directions load it.
    """
    if not plain:
        NumbaBackend(1).directions(SEEDS, 1, "gaussian")
    rig = Rig(shape, batch, tokens)
    with measure_peak_memory(CPU) as peak:
        rig.step(method)()
    return {"tensors": rig.weights + peak.bytes, "process": peak_memory_bytes()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--shape", default="llama-34m", choices=SHAPES)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument(
        "--plain", action="store_true", help="load the generator of directions only if it is used"
    )
    parser.add_argument("--measure", choices=METHODS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        torch.set_num_threads(1)
        work = given.measure, given.shape, given.batch, given.tokens
        print(json.dumps(measure(*work, given.plain)))
        return
    table = Table(title=f"{given.shape}, {given.batch} examples of {given.tokens} tokens", box=None)
    for column in (
        "method",
        "weights and tensors, MiB",
        "of inference",
        "process, MiB",
        "of inference",
    ):
        table.add_column(column, justify="right")
    first: dict[str, int] = {}
    for method in METHODS:
        command = [sys.executable, "-m", "benchmarks.speed.method_memory", "--measure", method]
        command += ["--shape", given.shape]
        command += ["--batch", str(given.batch), "--tokens", str(given.tokens)]
        command += ["--plain"] if given.plain else []
        ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found: dict[str, int] = json.loads(ended.stdout.splitlines()[-1])
        first = first or found
        cells = [
            cell
            for name in ("tensors", "process")
            for cell in (f"{found[name] / 2**20:.0f}", f"{found[name] / first[name]:.3f}")
        ]
        table.add_row(method, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
