"""Accuracy against a client's bytes, beside other federations, for 384 to a million trained
numbers.

    python -m benchmarks.accuracy.bytes_to_accuracy --data SOURCES --model MINILM \\
        --language-model SMOLLM2 --out FOLDER [--levels sst2,1e4,lm] [--seeds 0,1,2] \\
        [--objective cross-entropy]

A level is a data set, a model and an adapter. All methods of a level train the same numbers on the
same examples of the same eight clients (Dirichlet, α = 5), which have 400 training examples
together. `demo` has the writers of `samara demo` and needs `--model embedded`.

- Samara: the defaults; for a readout also with projected gradients, and inside a model also with
  directions that all clients share.
- DeComFL (Li et al., 2025), FedKSeed (Qin et al., 2024): the shipped scenarios `decomfl` and
  `fedkseed`, on a common number of rounds.
- FedAvg (McMahan et al., 2017): SGD on the gradient, with the steps and batches of projected
  gradients. η is the value of `RATES` with the lowest training loss after `TRIED` rounds. An update
  has d float32 numbers.
- 8 bits: a client sends its update, and the server the mean, as int8 with one float32 scale for
  each tensor (FedPAQ, Reisizadeh et al., 2020, with rounding to nearest): d bytes and 4 for each
  tensor.
- top 1 %: the largest hundredth of an update, each way (Stich et al., 2018; both ways, Tang et al.,
  2019): 4 bytes for a value and ⌈log₂ d⌉ bits for its index.

Both compressions add the omitted part to the next update, on clients and server. Frames of FedAvg
are counted without a header. Frames of the federations of scalars are counted with their headers,
by Samara's own counts. The bytes of a model are counted until all clients have it; the first model
has none. Inside a model FedKSeed reports differences of losses, and the others report their limit
z·∇L (`gradients=exact`). The frames are the same. Steps of several directions need fewer passes.

Accuracy is the mean over clients of the accuracy on their test examples. The target of a level is
midway between the accuracies of its start and of FedAvg's last model. FOLDER/cells.jsonl has a line
for each run, and the same command continues with it. points.csv, table.md and bytes_to_accuracy.png
are made from this file.
"""

import argparse
import csv
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.data_sets import DATA_SETS
from benchmarks.accuracy.rows import Row, Rows
from benchmarks.arguments import arguments
from samara.client.training.client_data import LabelledPrompts
from samara.client.training.model_runtime import LoadedRun, load_run
from samara.server.store import replay_run
from samara.shared.model.perturbations import Perturbations
from samara.shared.protocol.directions import batch_order, round_root
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.layout import Layout
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig
from samara.shared.settings.scenarios import read_scenario, scenario_file
from samara.shared.settings.setting import flattened
from samara.shared.tasks.objectives import CROSS_ENTROPY
from samara.simulations.planning.prompt_form import choose_form
from samara.simulations.simulate import simulate

CLIENTS = 8
DIVISION = {
    "data.seed": 0,
    "data.partition": "dirichlet",
    "data.alpha": 5.0,
    "data.limit": 400,
}
RATES, TRIED = (0.01, 0.1, 1.0, 10.0, 100.0), 2
MICRO_BATCH = 16
EVALUATED = 15
"""Maximum rounds of a run for which every model is evaluated."""
SHARE = 0.01
"""Share of an update's numbers that top-k sends."""
CENTRAL, SHARED = "Samara, projected gradients", "Samara, shared seeds"
SCALARS = {"Samara": "", CENTRAL: "", SHARED: "", "DeComFL": "decomfl", "FedKSeed": "fedkseed"}
"""Scenario of each federation of scalars; empty means the defaults."""
Vector = NDArray[np.float32]


class Compression(NamedTuple):
    """A compression of model updates.

    Attributes:
        received: function that takes the sent update, float32 [d], and returns the received one.
        size: function that returns the size of an update in bytes.
    """

    received: Callable[[Layout, Vector], Vector]
    size: Callable[[Layout], int]


class Level(NamedTuple):
    """A data set, a model and an adapter that all methods use.

    Attributes:
        data_set: a name in `DATA_SETS`.
        is_language_model: whether the model is the one given by `--language-model`.
        adapter: settings of the adapter.
        rounds: rounds of every method except FedKSeed.
        long_rounds: rounds of FedKSeed, each with 200 steps; 0 leaves FedKSeed out.
    """

    data_set: str
    is_language_model: bool
    adapter: dict[str, Any]
    rounds: int = 40
    long_rounds: int = 40


_READOUT = {"adapter.layers": "readout:auto"}


def _inside(rank: int) -> dict[str, Any]:
    """Return settings of adapters with 3,456 · rank numbers in the top block of MiniLM."""
    projections = {"adapter.projections": "query,key,value,dense"}
    return {"adapter.layers": "top:1", "adapter.rank": rank, **projections}


LEVELS = {
    "demo": Level("messages", False, _READOUT),
    "sst2": Level("sst2", False, _READOUT),
    "trec6": Level("trec6", False, _READOUT),
    "lm": Level("trec6", True, _READOUT),
    "1e4": Level("trec6", False, _inside(3), 15, 4),
    "1e5": Level("trec6", False, _inside(29), 6, 0),
    "1e6": Level("trec6", False, _inside(290), 5, 0),
    "sst2-1e4": Level("sst2", False, _inside(3), 15, 0),
    "sst2-1e5": Level("sst2", False, _inside(29), 6, 0),
    "lm-inside": Level("trec6", True, {"adapter.layers": "top:1", "adapter.rank": 16}, 8, 0),
}


def tensor_slices(layout: Layout) -> Iterator[slice]:
    """Yield the slice of each tensor of a layout."""
    start = 0
    for tensor in layout.tensors:
        yield slice(start, start := start + tensor.rows * tensor.columns)


def in_8_bits(layout: Layout, update: Vector) -> Vector:
    """Return an update with each tensor rounded to 255 levels."""
    received = np.zeros_like(update)
    for place in tensor_slices(layout):
        scale = np.abs(update[place]).max() / 127
        if scale:
            received[place] = np.rint(update[place] / scale) * scale
    return received


def largest_kept(layout: Layout, update: Vector) -> Vector:
    """Return an update in which all numbers except the largest are zero."""
    kept = np.argpartition(np.abs(update), -kept_count(layout))[-kept_count(layout) :]
    received = np.zeros_like(update)
    received[kept] = update[kept]
    return received


def kept_count(layout: Layout) -> int:
    """Return the number of elements that are kept: a hundredth of an update."""
    return max(1, round(SHARE * layout.size))


def sparse_bytes(layout: Layout) -> int:
    """Return the size in bytes of the values and indices of an update's largest numbers."""
    bits = math.ceil(math.log2(layout.size))
    return 4 * kept_count(layout) + math.ceil(kept_count(layout) * bits / 8)


COMPRESSIONS = {
    "FedAvg": Compression(lambda _, update: update, lambda layout: 4 * layout.size),
    "FedAvg, 8 bits": Compression(in_8_bits, lambda layout: layout.size + 4 * len(layout.tensors)),
    "FedAvg, top 1 %": Compression(largest_kept, sparse_bytes),
}
METHODS = [*SCALARS, *COMPRESSIONS]


class FedAvg:
    """A federation that averages the trained numbers of its clients.

    Args:
        run: model and data.
        config: settings of Samara's run, from which steps and batches come.
    """

    def __init__(self, run: LoadedRun, config: RunConfig) -> None:
        self._runtime, self._config = run.runtime, config
        self._train = [split_of(run, client, Split.TRAIN) for client in range(CLIENTS)]
        counts = np.array([len(own.labels) for own in self._train], np.float32)
        self._shares = counts / counts.sum()

    def best_rate(self) -> float:
        """Return the η with the lowest training loss after a few rounds."""

        def loss(rate: float) -> float:
            (*_, last) = self.run(rate, COMPRESSIONS["FedAvg"], TRIED)
            losses = [self._gradient(last, own)[0] for own in self._train]
            mean = float(self._shares @ np.array(losses))
            return mean if math.isfinite(mean) else math.inf

        return min(RATES, key=loss)

    def run(self, rate: float, compression: Compression, rounds: int) -> Iterator[Vector]:
        """Yield the averaged numbers after each round, float32 [d].

        Args:
            rate: η of the local steps.
            compression: compression of the updates, both ways.
            rounds: number of rounds.
        """
        layout = self._runtime.layout
        theta = np.zeros(layout.size, np.float32)
        left = [np.zeros_like(theta) for _ in range(CLIENTS + 1)]

        def sent(update: Vector, sender: int) -> Vector:
            whole = update + left[sender]
            received = compression.received(layout, whole)
            left[sender] = whole - received
            return received

        for number in range(rounds):
            mean = np.zeros_like(theta)
            for client, share in enumerate(self._shares):
                update = self._trained(theta, client, rate, number) - theta
                mean += share * sent(update, client)
            theta = theta + sent(mean, CLIENTS)
            yield theta

    def _trained(self, theta: Vector, client: int, rate: float, number: int) -> Vector:
        """Return a client's trained numbers after the local steps of a round."""
        train, root = self._train[client], round_root(self._config.seed, number, 0)
        for step in range(self._config.steps):
            order = batch_order(root, client, step, len(train.labels))
            batch = np.sort(order[: self._config.batch])
            prompts = tuple(train.prompts[index] for index in batch)
            some = LabelledPrompts(prompts, train.labels[batch], train.parts)
            theta = theta - np.float32(rate) * self._gradient(theta, some)[1].astype(np.float32)
        return theta

    def _gradient(self, theta: Vector, of: LabelledPrompts) -> tuple[float, NDArray[np.float64]]:
        center = Perturbations.from_arrays(self._runtime.layout, theta)
        losses, gradients = self._runtime.forward.loss_gradients(
            center, of.prompts, of.labels[None], MICRO_BATCH
        )
        return float(losses[0]), gradients[0]


def split_of(run: LoadedRun, client: int, split: Split) -> LabelledPrompts:
    """Return a client's examples of a split, prepared for steps or evaluations."""
    data = run.data.share_of(client, CLIENTS)
    found = data.tokenized(split) if split == Split.TRAIN else data.evaluated(split)
    for part in found.parts:
        run.runtime.prepare(part)
    return found


def test_accuracy(run: LoadedRun, state: NDArray[Any]) -> float:
    """Return the mean over clients of the accuracy on test examples.

    Args:
        run: model and data.
        state: units of a ledger, int64 [d], or numbers, float32 [d].
    """
    runtime = run.runtime
    weights = runtime.weight_map.weights(state) if state.dtype == np.int64 else state
    center = Perturbations.from_arrays(runtime.layout, weights)
    accuracies = []
    for client in range(CLIENTS):
        test = split_of(run, client, Split.TEST)
        if len(test.labels):
            scores = runtime.forward.scores(center, test.prompts)[0]
            accuracies.append(float((scores.argmax(axis=1) == test.labels).mean()))
    return float(np.mean(accuracies))


def evaluated_rounds(rounds: int) -> list[int]:
    """Return the rounds after which a model is evaluated: all, or at most nine of a long run.

    A profiled loss has one more round, which adds the clients' shifts.
    """
    if rounds <= EVALUATED:
        return list(range(1, rounds + 2))
    return sorted({round(rounds ** (part / 8)) for part in range(9)})


class Bench:
    """The runs of one level and seed.

    Args:
        level: data, model and adapter.
        common: settings of data, model and seed.
    """

    def __init__(self, level: Level, common: dict[str, Any]) -> None:
        self._level = level
        exact = {} if level.adapter == _READOUT else {"gradients": "exact"}
        self._settings = common | level.adapter | exact
        steps = {"rounds": level.rounds, "differences": "central"}
        choice = choose_form(RunConfig.of(self._settings, "bench"))  # the same for all methods
        if choice is not None:
            self._settings |= {"form": choice.form}
        self._config = RunConfig.of(self._settings | steps, "bench")
        self._run = load_run(self._config)
        self._rate: float | None = None

    @property
    def start(self) -> float:
        """Accuracy before the first round."""
        return test_accuracy(self._run, np.zeros(self._run.runtime.layout.size, np.float32))

    def measure(self, method: str) -> Row:
        """Run a method; return a client's bytes per round, and its accuracies by total bytes."""
        begun = time.process_time()
        row = self._scalars(method) if method in SCALARS else self._fed_avg(method)
        row |= {"d": self._run.runtime.layout.size, "start": self.start}
        return row | {"processor_seconds": round(time.process_time() - begun, 1)}

    def _scalars(self, method: str) -> Row:
        rounds = self._level.long_rounds if method == "FedKSeed" else self._level.rounds
        differences = {"gradients": "differences"} if method == "FedKSeed" else {}
        settings = self._settings | {"rounds": rounds} | differences
        scenario = SCALARS[method]
        rules = {CENTRAL: {"differences": "central"}, SHARED: {"seed-policy": "shared"}}
        rule: dict[str, Any] = rules.get(method, {})
        if scenario:
            rule = flattened(read_scenario(scenario_file(Path(scenario))))
        config = RunConfig.of(rule | settings, method)
        shutil.rmtree(config.out, ignore_errors=True)
        folder = simulate(config)
        result = RunResult.read(folder)
        up = [entry.bytes_up / CLIENTS for entry in result.rounds]
        down = [entry.bytes_down / CLIENTS for entry in result.rounds]
        down.append(down[-1])  # the last message, which brings the last model to the clients
        points = [
            [step.round, sum(up[: step.round]) + sum(down[: step.round + 1]), accuracy]
            for step in replay_run(folder)
            if step.record is not None and step.round in evaluated_rounds(rounds)
            for accuracy in [test_accuracy(self._run, step.state)]
        ]
        shutil.rmtree(folder)
        return {"up": float(np.mean(up)), "down": float(np.mean(down[1:])), "points": points}

    def _fed_avg(self, method: str) -> Row:
        federation = FedAvg(self._run, self._config)
        self._rate = self._rate or federation.best_rate()
        compression, rounds = COMPRESSIONS[method], self._level.rounds
        size = compression.size(self._run.runtime.layout)
        points = [
            [number, 2 * size * number, test_accuracy(self._run, theta)]
            for number, theta in enumerate(federation.run(self._rate, compression, rounds), 1)
            if number in evaluated_rounds(rounds)
        ]
        return {"up": size, "down": size, "rate": self._rate, "points": points}


def reached(row: Row, target: float) -> float:
    """Return the bytes up to the first model with a target accuracy; inf without such a model."""
    return next((size for _, size, accuracy in row["points"] if accuracy >= target), math.inf)


def of_level(rows: Rows, level: str) -> dict[str, list[Row]]:
    """Return the rows of a level by method, in the order of the methods."""
    own = [row for row in rows if row["level"] == level]
    by_method = {method: [row for row in own if row["method"] == method] for method in METHODS}
    return {method: found for method, found in by_method.items() if found}


def table(rows: Rows) -> str:
    """Return a Markdown table of means over seeds, with a line for each level and method."""
    lines = [
        "| level | d | method | seeds | bytes up a round | down | FedAvg's bytes / these | start | "
        "last accuracy | bytes to the target, by seed |",
        "|---" * 10 + "|",
    ]
    for level in LEVELS:
        methods = of_level(rows, level)
        whole = {row["seed"]: row for row in methods.get("FedAvg", [])}
        for method, found in methods.items():
            up, down = (float(np.mean([row[way] for row in found])) for way in ("up", "down"))
            start = float(np.mean([row["start"] for row in found]))
            last = float(np.mean([row["points"][-1][-1] for row in found]))
            sizes = [
                reached(row, (row["start"] + whole[row["seed"]]["points"][-1][-1]) / 2)
                for row in found
                if row["seed"] in whole
            ]
            told = ["not reached" if size == math.inf else f"{size:,.0f}" for size in sizes]
            lines.append(
                f"| {level} | {found[0]['d']:,} | {method} | {len(found)} | {up:,.0f} | "
                f"{down:,.0f} | {8 * found[0]['d'] / (up + down):,.1f} | {start:.1%} | "
                f"{last:.1%} | {', '.join(told)} |"
            )
    return "\n".join(lines) + "\n"


def write_points(rows: Rows, file: Path) -> None:
    """Write one line of CSV for each evaluated model."""
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["level", "d", "method", "seed", "round", "bytes", "accuracy"])
        for row in rows:
            for point in row["points"]:
                writer.writerow([*(row[k] for k in ("level", "d", "method", "seed")), *point])


def draw(rows: Rows, file: Path) -> None:
    """Draw accuracy against bytes, as means over seeds, in one panel for each level."""
    from matplotlib.figure import Figure

    levels = [level for level in LEVELS if of_level(rows, level)]
    across = min(3, len(levels))
    down = math.ceil(len(levels) / across)
    figure = Figure(figsize=(4.2 * across, 3.2 * down + 0.5), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    handles = {}
    for axes, level in zip(panels, levels, strict=False):
        for method, found in of_level(rows, level).items():
            points = np.mean([row["points"] for row in found], axis=0)
            handles[method] = axes.plot(
                points[:, 1],
                100 * points[:, 2],
                marker="ophsDv^<"[METHODS.index(method)],
                markersize=4,
                color=f"C{METHODS.index(method)}",
            )[0]
            row = found[0]
        axes.axhline(100 * row["start"], color="grey", linestyle=":", linewidth=1)
        model = "SmolLM2" if LEVELS[level].is_language_model else "MiniLM"
        model = "embedded model" if level == "demo" else model
        kind = "readout" if LEVELS[level].adapter == _READOUT else "LoRA in the last block"
        name = {"sst2": "SST-2", "trec6": "TREC"}.get(LEVELS[level].data_set, "messages")
        axes.set_title(f"{row['d']:,} trained numbers\n{model}, {kind}, {name}", fontsize=9)
        axes.set_xscale("log")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[len(levels) :]:
        axes.set_axis_off()
    figure.supxlabel("bytes of a client, sent and received", fontsize=9)
    figure.supylabel("test accuracy, %", fontsize=9)
    handles = {method: handles[method] for method in METHODS if method in handles}
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside upper center",
        ncols=min(len(handles), 2 * across),
        frameon=False,
    )
    figure.savefig(file, dpi=110)


def measure(given: argparse.Namespace, methods: Sequence[str]) -> None:
    """Measure the missing rows, and write the points, the table and the figure."""
    rows = Rows(given.out / "cells.jsonl")
    for seed, level in product(given.seeds, given.levels):
        bench: Bench | None = None
        own = LEVELS[level]
        for method in methods:
            rounds = own.long_rounds if method == "FedKSeed" else own.rounds
            is_default = method == (SHARED if own.adapter == _READOUT else CENTRAL)
            if not rounds or is_default or rows.find(level=level, method=method, seed=seed):
                continue
            model = given.language_model if own.is_language_model else given.model
            common = DATA_SETS[own.data_set].prepare(given.data, given.out / "data") | {
                **({"data.seed": seed} if level == "demo" else DIVISION),
                "model.path": model,
                "seed": seed,
                "objective": given.objective,
                "data.clients": CLIENTS,
                "evaluate.every": 0,
                "evaluate.test": False,
                "personal.rounds": 0,
                "threads": 1,
                "trunk-cache-folder": str(given.out / "representations"),
                "out": str(given.out / "run"),
            }
            bench = bench or Bench(own, common)
            rows.add({"level": level, "method": method, "seed": seed} | bench.measure(method))
            write_points(rows, given.out / "points.csv")
            (given.out / "table.md").write_text(table(rows), encoding="utf-8")
    draw(rows, given.out / "bytes_to_accuracy.png")
    print(table(rows))


def main() -> None:
    given = arguments(
        __doc__,
        data=Path,
        model=str,
        language_model="",
        out=Path,
        levels=list(LEVELS),
        methods=";".join(METHODS),
        objective=CROSS_ENTROPY,
        seeds=[0, 1, 2],
    )
    logging.getLogger("flwr").setLevel(logging.WARNING)
    measure(given, given.methods.split(";"))


if __name__ == "__main__":
    main()
