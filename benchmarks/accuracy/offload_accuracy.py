"""Accuracy of first-order methods beside a host, at equal steps and at equal emulated time.

    OMP_NUM_THREADS=1 python -m benchmarks.accuracy.offload_accuracy --data SOURCES --out FOLDER \\
        --model minilm=FOLDER --model llama=FOLDER [--sets sst2,trec6,mrpc] [--methods full,lora]

SOURCES is the folder of source data that `data_sets` describes. Each run is one of `samara tune` in
process: the batches of a seed are the same for all methods, and so are those of the first steps of
a shorter run. Every method's learning rate is searched on seed 0 of each data set, from its centre
by factors of √10 as long as the lowest validation loss of the run falls; methods that have no
search of their own take the rate of another one, as `METHODS` says. Test examples have no say.

Emulated time is in seconds of this machine's core, by the formulas of `iteration_time`. What a step
computes, and the learning of projectors, is the processor time that was measured in the runs. Link
and host are those of the LSP-Offload paper's table 1: transfers of whole gradients that take 0.93
each way and an update of 1.92 where forward and backward pass take 0.84. The *equal time* of a data
set is what LSP-Offload with s = hidden/8 and r = 16 takes for its steps, learning included; other
methods take as many steps as fit into it.

FOLDER/rows.jsonl has a line per run; runs that are in it are not repeated, so the same command
continues. FOLDER/table.md has mean ± standard deviation over the seeds.
"""

import argparse
import json
import math
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.accuracy.cells import listed
from benchmarks.accuracy.data_sets import DATA_SETS
from benchmarks.accuracy.emulated_steps import emulated_step
from benchmarks.accuracy.rate_search import search_rate
from benchmarks.accuracy.rows import Row, Rows
from samara.client.offload.linear_layers import linear_weights
from samara.client.tuning.run import read_result, tune
from samara.client.tuning.settings import TuneSettings
from samara.client.tuning.tuning_setup import TuningSetup
from samara.shared.model.lora_fa import empty_adapter

REFERENCE = "lsp-8-16"
LEARNING_STEPS = 50
"""Most steps of learning, a quarter of the default: the runs are short."""
SPLITS = {"data.train": 1000, "data.validation": 150, "data.test": 300}


@dataclass(frozen=True)
class Method:
    """A row of the table.

    Attributes:
        settings: its settings of `samara tune`.
        centre: learning rate that the search begins with; 0 if there is none.
        rate_of: name of the method whose learning rate is taken where there is no search.
        part: s is the hidden size divided by it; 0 for other methods than LSP-Offload.
        equal_time: whether it is also run for the equal time.
    """

    settings: dict[str, Any]
    centre: float = 0.0
    rate_of: str = ""
    part: int = 0
    equal_time: bool = False


def _lsp(part: int, nonzeros: int, **more: Any) -> dict[str, Any]:
    return {
        "optimizer": "lsp",
        "lsp.nonzeros": nonzeros,
        "lsp.learning-steps": LEARNING_STEPS,
        **more,
    }


METHODS = {
    "full": Method({"optimizer": "zero-offload", "space": "full"}, 1e-4, equal_time=True),
    REFERENCE: Method(_lsp(8, 16), 1e-3, part=8),
    "lora": Method({"optimizer": "lora"}, 1e-3, equal_time=True),
    "lsp-8-16-random": Method(
        _lsp(8, 16) | {"lsp.learning-steps": 0}, 1e-3, part=8, equal_time=True
    ),
    "linear": Method(
        {"optimizer": "zero-offload", "space": "linear"}, rate_of="full", equal_time=True
    ),
    "lsp-4-16": Method(_lsp(4, 16), rate_of=REFERENCE, part=4),
    "lsp-16-16": Method(_lsp(16, 16), rate_of=REFERENCE, part=16),
    "lsp-8-4": Method(_lsp(8, 4), rate_of=REFERENCE, part=8),
}
"""`full` and `linear` are Zero-Offload's, with the bits of Adam beside the weights."""


@dataclass
class Benchmark:
    """The runs of a model on a data set.

    Attributes:
        model: name of the model.
        path: folder of the model.
        data_set: name of the data set.
        common: settings of all runs.
        folder: folder of the runs, which are removed.
        steps: steps of a run at equal steps.
        rows: rows of all models and data sets so far.
        search: whether learning rates are searched; otherwise they are the centres.
    """

    model: str
    path: str
    data_set: str
    common: dict[str, Any]
    folder: Path
    steps: int
    rows: Rows
    search: bool = True

    def measure_compute(self) -> Row:
        """Measure forward and backward pass of a step, and count what methods transfer."""
        key = {"kind": "compute", "model": self.model, "data_set": self.data_set}
        if (found := self.rows.find(**key)) is not None:
            return found
        settings = self._settings(METHODS["full"], 0, 1, 1e-5)
        setup = TuningSetup(settings.complete(1))
        network = setup.base.network.requires_grad_(True)
        adapter, unadapted = empty_adapter()
        forward, train = setup.make_forward(adapter), setup.splits["train"]
        forwards, backwards = [], []
        for step in range(10):
            batch = setup.batch(step)
            begun = time.process_time()
            scores = forward.score_pass(unadapted, [train.prompts[index] for index in batch])[0]
            labels = torch.from_numpy(train.labels[batch].astype(np.int64))
            loss = nn.functional.cross_entropy(scores, labels)
            forwards.append(time.process_time() - begun)
            loss.backward()  # type: ignore[no-untyped-call]
            backwards.append(time.process_time() - begun - forwards[-1])
            for weight in network.parameters():
                weight.grad = None
        hidden = setup.base.features
        matrices = [weight.shape for weight in linear_weights(network).values()]
        sent = {
            f"lsp-{part}": sum(math.prod(min(side, hidden // part) for side in s) for s in matrices)
            for part in (4, 8, 16)
        }
        return self.rows.add(
            key
            | {"forward": statistics.median(forwards), "backward": statistics.median(backwards)}
            | {"layers": len(setup.base.blocks), "hidden": hidden}
            | {"full": sum(weight.numel() for weight in network.parameters())}
            | {"linear": sum(map(math.prod, matrices))}
            | sent
        )

    def run(self, name: str, seed: int, steps: int, rate: float) -> Row:
        """Run a method, unless its row is there."""
        rate = float(f"{rate:.3g}")
        key = {
            "kind": "run",
            "model": self.model,
            "data_set": self.data_set,
            "method": name,
            "seed": seed,
            "steps": steps,
            "rate": rate,
        }
        if (found := self.rows.find(**key)) is not None:
            return found
        ends = [0.0]

        def on_step(done: int, whole: int) -> None:
            ends.append(time.process_time())

        settings = self._settings(METHODS[name], seed, steps, rate)
        shutil.rmtree(settings.out, ignore_errors=True)
        result = read_result(tune(settings, on_step))
        checks = Path(settings.out) / "projectors.jsonl"
        check = json.loads(checks.read_text()) if checks.exists() else {}
        shutil.rmtree(settings.out)
        # Validations lie between steps; the median leaves them out, and the check before step 1.
        step_seconds = statistics.median(np.diff(ends[2:])) if steps > 2 else None
        metric = result["metric"]
        return self.rows.add(
            key
            | {"zero_shot": result["zero_shot"]["test"][metric], "test": result["test"][metric]}
            | {"best_step": result["best_step"], "step_seconds": step_seconds}
            | {"check_seconds": check.get("processor_seconds", 0.0)}
            | {"bias": check.get("bias"), "bias_before": check.get("bias_before")}
            | {"validation_loss": min(point["loss"] for point in result["curve"])}
            | {"losses": {point["step"]: point["loss"] for point in result["curve"]}}
        )

    def search_rate(self, name: str) -> float:
        """Return the learning rate with the lowest validation loss of seed 0."""
        method = METHODS[name]
        if method.rate_of:
            return self.search_rate(method.rate_of)
        if not self.search:
            return method.centre

        def loss(rate: float) -> float:
            return float(self.run(name, 0, self.steps, rate)["validation_loss"])

        return search_rate(method.centre, loss)

    def iteration_seconds(self, name: str, step_seconds: float) -> float:
        """Return the emulated seconds of a step.

        Args:
            name: name of the method.
            step_seconds: measured processor time of a step.
        """
        compute, method = self.measure_compute(), METHODS[name]
        if name == "lora":
            return step_seconds
        forward, backward = compute["forward"], compute["backward"]
        share = compute[f"lsp-{method.part}" if method.part else name] / compute["full"]
        extra = max(0.0, step_seconds - forward - backward) if method.part else 0.0
        layerwise = bool(method.part)
        return emulated_step(forward, backward, extra, share, compute["layers"], layerwise)

    def costs(self, name: str) -> tuple[float, float]:
        """Return the emulated seconds of a step and of the first check, medians over all runs."""
        rows = [row for row in self.own_rows if row["method"] == name and row["step_seconds"]]
        step, check = (
            statistics.median(row[key] for row in rows) for key in ("step_seconds", "check_seconds")
        )
        return self.iteration_seconds(name, step), check

    def steps_in_equal_time(self, name: str) -> int:
        """Return how many steps of a method fit into the equal time."""
        if (found := self.rows.find(**self._time_key(name))) is not None:
            return int(found["steps"])
        step, check = self.costs(REFERENCE)
        equal_time = self.steps * step + check
        step, check = self.costs(name)
        steps = max(1, int((equal_time - check) / step))
        # Written down: later runs change the medians, and would change the number with them.
        return int(self.rows.add(self._time_key(name) | {"steps": steps})["steps"])

    def _time_key(self, name: str) -> dict[str, Any]:
        return {
            "kind": "equal time",
            "model": self.model,
            "data_set": self.data_set,
            "method": name,
        }

    @property
    def own_rows(self) -> list[Row]:
        """The rows of runs of this model on this data set."""
        return [
            row
            for row in self.rows
            if (row["kind"], row["model"], row["data_set"]) == ("run", self.model, self.data_set)
        ]

    def _settings(self, method: Method, seed: int, steps: int, rate: float) -> TuneSettings:
        part = {}
        if method.part:
            from transformers import AutoConfig

            hidden = AutoConfig.from_pretrained(self.path, trust_remote_code=False).hidden_size
            part = {"lsp.subspace-size": hidden // method.part}
        out = self.folder / f"run-{self.model}-{self.data_set}"
        return TuneSettings.of(
            self.common
            | method.settings
            | part
            | {"model.path": self.path, "seed": seed, "steps": steps, "learning-rate": rate}
            | {"validate-every": max(1, self.steps // 2), "out": str(out)},
            "offload_accuracy",
        )


def measure(benchmark: Benchmark, methods: Sequence[str], seeds: Sequence[int]) -> None:
    """Take all runs of a model on a data set, rates first."""
    benchmark.measure_compute()
    rates = {name: benchmark.search_rate(name) for name in methods}
    for seed in seeds:
        for name in methods:
            benchmark.run(name, seed, benchmark.steps, rates[name])
        for name in methods:
            if METHODS[name].equal_time and REFERENCE in methods:
                steps = benchmark.steps_in_equal_time(name)
                benchmark.run(name, seed, steps, rates[name])


def render_table(
    benchmarks: Sequence[Benchmark], methods: Sequence[str], seeds: Sequence[int]
) -> str:
    """Return a Markdown table with a line per model, data set, method and number of steps."""
    lines = [
        "| model | data | method | η | steps | seeds | test | bias | step / compute "
        "| learning / compute | emulated time / compute |",
        "|---" * 11 + "|",
    ]
    for benchmark in benchmarks:
        compute = benchmark.measure_compute()
        both = compute["forward"] + compute["backward"]
        for name in methods:
            rate = float(f"{benchmark.search_rate(name):.3g}")
            step, check = (seconds / both for seconds in benchmark.costs(name))
            groups: defaultdict[int, list[Row]] = defaultdict(list)
            for row in benchmark.own_rows:
                if (row["method"], row["rate"]) == (name, rate) and row["seed"] in seeds:
                    groups[row["steps"]].append(row)
            for steps, rows in sorted(groups.items()):
                tests = [100 * row["test"] for row in rows]
                spread = statistics.stdev(tests) if len(tests) > 1 else math.nan
                bias = f"{rows[0]['bias']:.2f}" if rows[0]["bias"] else ""
                lines.append(
                    f"| {benchmark.model} | {benchmark.data_set} | {name} | {rate} | {steps} "
                    f"| {len(rows)} | {statistics.mean(tests):.1f} ± {spread:.1f} | {bias} "
                    f"| {step:.2f} | {check:.0f} | {steps * step + check:.0f} |"
                )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--model", required=True, action="append", dest="models")
    parser.add_argument("--sets", type=listed, default=["sst2", "trec6", "mrpc"])
    parser.add_argument("--methods", type=listed, default=list(METHODS))
    parser.add_argument("--seeds", type=listed, default=["0", "1", "2"])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--no-search", action="store_true", help="take the centres of the searches")
    arguments = parser.parse_args()
    rows = Rows(arguments.out / "rows.jsonl")
    seeds = list(map(int, arguments.seeds))
    benchmarks = []
    for data_set in arguments.sets:
        where = DATA_SETS[data_set].prepare(arguments.data, arguments.out / "data")
        del where["data.limit"]
        common = where | SPLITS | {"threads": 1, "batch": 16, "micro-batch": 0}
        for model in arguments.models:
            name, _, path = model.partition("=")
            benchmark = Benchmark(
                name,
                path,
                data_set,
                common,
                arguments.out,
                arguments.steps,
                rows,
                not arguments.no_search,
            )
            benchmarks.append(benchmark)
            measure(benchmark, arguments.methods, seeds)
            table = render_table(benchmarks, arguments.methods, seeds)
            (arguments.out / "table.md").write_text(table)
    print(table)


if __name__ == "__main__":
    main()
