"""Steps, catch-up, directions and simulated rounds, beside the loops of other projects.

    python -m benchmarks.peers [--small] [--repetitions 5] [--clients 64 256] [--weights int8 …]

The peers' loops are rewritten from their papers. MeZO takes its step in place (Malladi et al.,
2023, algorithm 1). DeComFL's client rebuilds the model from the seeds and scalars of missed rounds
(Li et al., 2024). FedKSeed's client adds the candidate seeds times their accumulated scalars,
tensor by tensor (Qin et al., 2024). Flower's clients in Ray actors answer each round with one
number. A bare pass runs the unadapted model over the rows of a step; as in a run, the blocks below
the adapters have run before. All measurements are interleaved, repetition by repetition. A ratio is
computed within its repetition, and the median is shown; above 1, Samara is faster. Seconds are
processor seconds of one thread. Simulated rounds are measured by the wall clock, because Ray's
processes outlive the run. `--small` uses sizes that only show that the program works.
"""

import argparse
import logging
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from statistics import median

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.interleaved import interleaved, median_ratio
from benchmarks.speed.step import Bench, StepBench
from benchmarks.speed.whole_model_step import mezo_step
from samara.client.training.local_steps import take_local_steps
from samara.client.training.model_runtime import load_run
from samara.shared.model.quantized import Quantization
from samara.shared.protocol.frames.instructions import SeedPolicy, Split, TrainInstruction
from samara.shared.protocol.replay import zero_state
from samara.shared.protocol.replay_numba import NumbaBackend
from samara.shared.settings.config import RunConfig

SCALE = 2.0**-40
WEIGHTS: dict[str, tuple[Quantization, str]] = {
    "float32": ("none", "float32"),
    "bfloat16": ("none", "bfloat16"),
    "int8": ("int8", "float32"),
}
"""Quantization and dtype of a model's weights, by their short name."""


@dataclass(frozen=True)
class Contest:
    """Equal work, done by Samara and by peers.

    Attributes:
        work: short description of the work.
        ours: Samara's function.
        theirs: the peers' functions by name.
    """

    work: str
    ours: Callable[[], object]
    theirs: dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Ratio:
    """Median seconds of a peer and of Samara for equal work, and the median of their ratios."""

    work: str
    peer: str
    seconds: float
    peer_seconds: float
    ratio: float


def processor_seconds(run: Callable[[], object]) -> float:
    """Return the processor seconds that a call takes."""
    begun = time.process_time()
    run()
    return time.process_time() - begun


def compared(contest: Contest, repetitions: int) -> list[Ratio]:
    """Measure a contest, with Samara and its peers in turn."""
    sides = {"": contest.ours} | contest.theirs
    for run in sides.values():
        run()  # compiles, and allocates memory
    seconds = interleaved(sides, repetitions, processor_seconds)
    return ratios(contest.work, seconds.pop(""), seconds)


def ratios(work: str, ours: Sequence[float], theirs: dict[str, list[float]]) -> list[Ratio]:
    """Compare each peer's seconds with Samara's seconds from the same repetitions."""
    return [
        Ratio(work, peer, median(ours), median(own), median_ratio(own, ours))
        for peer, own in theirs.items()
    ]


def steps(
    shape: str, batches: Sequence[int], length: int, layers: Sequence[str], weights: Sequence[str]
) -> list[Contest]:
    """Return contests of steps inside a language model: Samara, MeZO, and a bare pass.

    Args:
        shape: name of a shape of `benchmarks.speed.shapes`; its weights are random.
        batches: numbers B of examples in a step.
        length: tokens of an example.
        layers: adapted blocks.
        weights: kinds of the model's weights, keys of `WEIGHTS`.
    """
    contests = []
    for own, kind in product(layers, weights):
        quantization, dtype = WEIGHTS[kind]
        bench = Bench(
            StepBench(shape, quantization, dtype, "cpu", 4, (), (length,), own, 4, 1, threads=1)
        )
        for batch in batches:
            prompts = bench.prompts(batch, length)
            rows = torch.tensor([prompt.sequences[0] for prompt in prompts] * 8)
            contests.append(
                Contest(
                    f"step, {shape}, {own}, B = {batch}, q = 4, {kind}",
                    bench.p_rge(prompts, bench.auto(prompts)),
                    {"MeZO": bench.others(prompts)["mezo"], "bare pass": _bare_pass(bench, rows)},
                )
            )
    return contests


def _bare_pass(bench: Bench, rows: torch.Tensor) -> Callable[[], object]:
    """Return a function that runs the unadapted network over the rows of a step."""

    def run() -> None:
        with torch.inference_mode():
            bench.base.network(input_ids=rows, logits_to_keep=1)

    return run


def readout_steps(count: int) -> Contest:
    """Return a contest of a client's steps on the embedded model's readout: Samara and MeZO.

    The client steps by projected gradients on cached representations, MeZO on as many features.
    """
    runtime, source = load_run(RunConfig.of({"differences": "central", "threads": 1}, "peers"))
    config, data, size = runtime.config, source.share_of(0, 8), runtime.layout.size
    instruction = TrainInstruction(
        *(bytes(8), 1, 0, count, config.queries, config.batch, SeedPolicy.INDEPENDENT, 0),
        *(config.epsilon, 1e-3, 0.0, 0.0, runtime.layout.hash, bytes(32)),
    )
    labels = torch.from_numpy(data.tokenized(Split.TRAIN).labels).float()
    features, weights = torch.randn(len(labels), size), torch.zeros(size)
    mezo = mezo_step(
        [weights],
        lambda: binary_cross_entropy_with_logits(features @ weights, labels),
        config.queries,
        config.epsilon,
        1e-3,
    )
    return Contest(
        f"{count} steps, readout, d = {size}, B = {len(labels)}, q = {config.queries}",
        partial(take_local_steps, runtime, data, instruction, zero_state(size)),
        {"MeZO": lambda: [mezo() for _ in range(count)]},
    )


def replays(sizes: Sequence[int], count: int) -> list[Contest]:
    """Return contests in catching up by a number of directions, and in computing directions.

    Args:
        sizes: numbers d of trained numbers.
        count: number of directions.
    """
    backend, contests = NumbaBackend(1), []
    rng = np.random.default_rng(0)
    seeds = rng.integers(2**63, size=count, dtype=np.uint64)
    coefficients = rng.integers(-(2**31) + 1, 2**31, size=count)
    scalars = list(zip(seeds.tolist(), (coefficients * SCALE).tolist(), strict=True))
    for size in sizes:
        state = np.zeros(size, np.int64)
        flat = torch.zeros(size)
        tensors = torch.zeros(size).chunk(4)

        def decomfl(flat: torch.Tensor = flat) -> None:
            generator = torch.Generator()
            for seed, scalar in scalars:
                generator.manual_seed(seed)
                flat.sub_(torch.randn(len(flat), generator=generator), alpha=scalar)

        def fedkseed(tensors: Sequence[torch.Tensor] = tensors) -> None:
            for seed, scalar in scalars:
                torch.manual_seed(seed)
                for tensor in tensors:
                    z = torch.normal(mean=0.0, std=1.0, size=tensor.shape)
                    tensor.sub_(z, alpha=scalar)

        def drawn_by_torch(size: int = size) -> None:
            for seed in seeds.tolist():
                torch.manual_seed(seed)
                torch.randn(size)

        def drawn_by_numpy(size: int = size) -> None:
            for seed in seeds.tolist():
                np.random.default_rng(seed).standard_normal(size, np.float32)

        contests += [
            Contest(
                f"catching up, {count:,} directions, d = {size:,}",
                partial(backend.fold, state, seeds, coefficients, "gaussian"),
                {"DeComFL": decomfl, "FedKSeed": fedkseed},
            ),
            Contest(
                f"drawing {count:,} directions, d = {size:,}",
                partial(backend.directions, seeds, size, "gaussian"),
                {"torch": drawn_by_torch, "NumPy": drawn_by_numpy},
            ),
        ]
    return contests


def samara_rounds(clients: int, rounds: int) -> list[float]:
    """Return the seconds of a simulated run's overhead, then of its other rounds of one step.

    The overhead is the start, the first round (which loads the model), and the end.
    """
    from samara.shared.results.result import RunResult
    from samara.simulations.simulate import simulate

    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "out": folder,
            "rounds": rounds,
            "steps": 1,
            "data.clients": clients,
            "evaluate.every": 0,
            "evaluate.best": False,
            "personal.rounds": 0,
            "threads": 1,
        }
        begun = time.monotonic()
        result = RunResult.read(simulate(RunConfig.of(settings, "peers")))
        whole = time.monotonic() - begun
    later = [end.seconds - begin.seconds for begin, end in pairwise(result.rounds)]
    return [whole - sum(later), *later]


def ray_rounds(clients: int, rounds: int) -> list[float]:
    """Return the seconds of rounds in which clients answer with one number.

    The first number is the seconds of the start and the first round together.
    """
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client, server, ends = ClientApp(), ServerApp(), list[float]()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1, "loss": 0.0})
        arrays = ArrayRecord([np.zeros(1, np.float32)])
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients
        )
        strategy.start(
            grid,
            ArrayRecord([np.zeros(1, np.float32)]),
            num_rounds=rounds,
            train_config=ConfigRecord(),
            evaluate_fn=lambda number, arrays: ends.append(time.monotonic()),
        )

    begun = time.monotonic()
    run_simulation(server, client, clients, backend_config={"client_resources": {"num_cpus": 1}})
    return [end - begin for begin, end in pairwise([begun, *ends[1:]])]


def simulated(clients: int, rounds: int) -> list[Ratio]:
    """Measure simulated rounds of Samara and of Flower's Ray actors."""
    ours, theirs = samara_rounds(clients, rounds), ray_rounds(clients, rounds)
    peer = "Flower on Ray"
    return [
        *ratios(f"start and first round of {clients} clients", ours[:1], {peer: theirs[:1]}),
        *ratios(f"round of {clients} clients, by the clock", ours[1:], {peer: theirs[1:]}),
    ]


def table(found: Sequence[Ratio]) -> Table:
    """Return the ratios as a table."""
    shown = Table(title=f"One thread of {_machine()}")
    for column in ("work", "peer", "Samara, s", "peer, s", "times as fast"):
        shown.add_column(column, justify="left" if column in ("work", "peer") else "right")
    for row in found:
        seconds = f"{row.seconds:.4f}", f"{row.peer_seconds:.4f}"
        shown.add_row(row.work, row.peer, *seconds, f"{row.ratio:.2f}")
    return shown


def _machine() -> str:
    """Return the name of the processor."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def main() -> None:
    """Measure all contests, and print the table of ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--small", action="store_true", help="small sizes, to show that the program works"
    )
    parser.add_argument(
        "--repetitions", type=int, default=5, help="repetitions of all measurements, interleaved"
    )
    parser.add_argument("--clients", type=int, nargs="*", default=[64, 256], help="of simulations")
    parser.add_argument(
        "--weights", nargs="*", default=list(WEIGHTS), choices=list(WEIGHTS), help="of steps"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    shape = "llama-tiny" if given.small else "llama-34m"
    layers, batches = (
        (("top:1", "all"), (1,)) if given.small else (("top:1", "top:4", "all"), (1, 16))
    )
    contests = steps(shape, batches, 8 if given.small else 32, layers, given.weights)
    contests.append(readout_steps(10 if given.small else 100))
    contests += replays((128,) if given.small else (384, 10**5, 10**6), 4 if given.small else 256)
    found = [row for contest in contests for row in compared(contest, given.repetitions)]
    logging.disable(logging.WARNING)  # hides Flower's tables of each round
    for clients in given.clients:
        found += simulated(clients, 3 if given.small else 6)
    Console(width=120).print(table(found))


if __name__ == "__main__":
    main()
