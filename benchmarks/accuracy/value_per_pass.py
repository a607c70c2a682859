"""Accuracy against example passes through the model, bytes and seconds, on many data sets.

    python -m benchmarks.accuracy.value_per_pass --data SOURCES --model MODEL --out FOLDER \\
        [--sets sst2,trec6] [--clients 1,8,64] [--seeds 0,1,2] [--alpha 5] [--set rounds=20] \\
        [--condition default --condition exact:gradients=exact --condition few:steps=4,queries=8]

SOURCES is the folder of source data that `data_sets` describes. Each run is one of `samara
simulate` in process, with the settings of a condition and no others beside data, model, clients,
their Dirichlet partition (a run's own division with `--alpha inf`: by users or at random) and
seed, and without private rounds, which do not change the global model. A condition is a name and
settings; `--set` holds for all of them. Data are divided by `data.seed` 0 whatever the seed, so
that runs share representations on disk.

The limits of a row are logistic regressions by scikit-learn on the same features φ(h) of all
clients together: `probe CV`, whose C is the best of eight in three-fold cross-validation on the
training examples, and `probe`, with C = 1.

FOLDER/rows.jsonl has one line per run; runs that are in it are not repeated, so the same command
continues. FOLDER/table.md has the means over the seeds. Passes are the rows through the model of
one client in the mean, and bytes those of a client and round.
"""

import argparse
import json
import logging
import shutil
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.accuracy.data_sets import DATA_SETS
from client.training.model_runtime import load_run
from shared.config import RunConfig
from shared.frames.instructions import Split
from shared.result import RunResult
from shared.settings import parse_assignment
from simulations.simulate import simulate

STRENGTHS = np.logspace(-3, 4, 8)
"""C of the limit, from strong regularisation to weak."""
CACHE_BYTES = 2**32


class Cell(NamedTuple):
    """The data of a run and its division among clients."""

    data_set: str
    clients: int
    alpha: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--sets", type=listed, default=list(DATA_SETS))
    parser.add_argument("--clients", type=listed, default=["1", "8", "64"])
    parser.add_argument("--seeds", type=listed, default=["0", "1", "2"])
    parser.add_argument("--alpha", type=listed, default=["5"])
    parser.add_argument("--condition", action="append", dest="conditions")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "rows.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {_key(row) for row in rows}
    for row in measure(arguments, done):
        with file.open("a") as opened:
            opened.write(json.dumps(row) + "\n")
        rows.append(row)
        (arguments.out / "table.md").write_text(render_table(rows))
    print(render_table(rows))


def measure(arguments: argparse.Namespace, done: set[str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each run that is not done yet."""
    common = dict(map(parse_assignment, arguments.settings))
    conditions = dict(map(parse_condition, arguments.conditions or ["default"]))
    for name in arguments.sets:
        where = DATA_SETS[name].prepare(arguments.data, arguments.out / "data")
        for cell in (
            Cell(name, int(clients), float(alpha))
            for clients in arguments.clients
            for alpha in arguments.alpha
        ):
            limits: dict[str, Any] = {}
            for condition, settings in conditions.items():
                for seed in map(int, arguments.seeds):
                    row = {**cell._asdict(), "condition": condition, "seed": seed}
                    row["set"] = {key: str(value) for key, value in (common | settings).items()}
                    if _key(row) in done:
                        continue
                    config = settings_of(
                        arguments, cell, where | common | settings | {"seed": seed}
                    )
                    limits = limits or measure_limits(config)
                    yield row | limits | run(config)


def parse_condition(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and settings of a condition: `NAME` or `NAME:KEY=VALUE,KEY=VALUE`."""
    name, _, settings = text.partition(":")
    return name, dict(parse_assignment(part) for part in settings.split(",") if part)


def settings_of(arguments: argparse.Namespace, cell: Cell, settings: dict[str, Any]) -> RunConfig:
    """Return the settings of a run on a cell; `settings` come last."""
    partition = "dirichlet" if cell.clients > 1 else "iid"
    division = {"data.partition": partition, "data.alpha": cell.alpha}
    return RunConfig.of(
        {
            "model.path": arguments.model,
            "data.clients": cell.clients,
            **(division if cell.alpha < np.inf else {}),
            "cohort.available": cell.clients,
            "personal.rounds": 0,
            "threads": 1,
            "trunk-cache": CACHE_BYTES,
            "trunk-cache-folder": str(arguments.out / "representations"),
            "out": str(arguments.out / "run"),
            **settings,
        },
        "value_per_pass",
    )


def measure_limits(config: RunConfig) -> dict[str, Any]:
    """Return the sizes of a cell's data, and the accuracy of the two probes on test examples."""
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

    readout = RunConfig.of(config.flat() | {"adapter.layers": "readout"}, "limits")
    runtime, source = load_run(readout)
    features, labels = {}, {}
    for split in (Split.TRAIN, Split.TEST):
        parts = [
            source.share_of(client, config.data.clients).tokenized(split)
            for client in range(config.data.clients)
        ]
        for part in parts:
            runtime.prepare(part.prompts)
        features[split] = np.concatenate([runtime.features(p.prompts) for p in parts if p.prompts])
        labels[split] = np.concatenate([part.labels for part in parts])
    shutil.rmtree(config.out, ignore_errors=True)
    train, test = (
        (features[Split.TRAIN], labels[Split.TRAIN]),
        (features[Split.TEST], labels[Split.TEST]),
    )
    best = LogisticRegressionCV(Cs=STRENGTHS, cv=3, max_iter=1000)
    plain = LogisticRegression(max_iter=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rare labels, and solvers that stop before they converge
        return {
            "examples": len(train[1]),
            "test_examples": len(test[1]),
            "labels": runtime.label_count,
            "features": int(train[0].shape[1]),
            "probe_cv": float(best.fit(*train).score(*test)),
            "probe": float(plain.fit(*train).score(*test)),
            "majority": float(np.mean(test[1] == np.bincount(train[1]).argmax())),
        }


def run(config: RunConfig) -> dict[str, Any]:
    """Run a federation and return what it cost and gained; its folder is removed."""
    shutil.rmtree(config.out, ignore_errors=True)
    begun, processor = time.monotonic(), time.process_time()
    result = RunResult.read(simulate(config))
    seconds, processor = time.monotonic() - begun, time.process_time() - processor
    globals_ = [(e.round, e.split, e.columns["global"]) for e in result.evaluations]
    test = [column for _, split, column in globals_ if split == "test"]
    reports = len(result.rounds) * config.data.clients
    scalars = result.scalar_ratios
    shutil.rmtree(config.out, ignore_errors=True)
    return {
        "zero_shot": test[0].accuracy,
        "accuracy": test[-1].accuracy,
        "macro_f1": test[-1].macro_f1,
        "loss": test[-1].loss,
        "validation": {
            number: column.accuracy for number, split, column in globals_ if split == "validation"
        },
        "passes": result.mean_passes,
        "bytes_up": sum(r.bytes_up for r in result.rounds) / reports,
        "bytes_down": sum(r.bytes_down for r in result.rounds) / reports,
        "elements": result.elements,
        "scalar_ratio": scalars.mean if scalars else None,
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor, 1),
    }


def render_table(rows: Iterable[dict[str, Any]]) -> str:
    """Return a Markdown table with a line per cell and condition, means over seeds."""
    groups: defaultdict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        setting = " ".join(f"{key}={value}" for key, value in row["set"].items())
        cell = row["data_set"], row["labels"], row["examples"], row["clients"], row["alpha"]
        groups[*cell, row["condition"], setting].append(row)
    lines = [
        "| data | labels | examples | clients | α | condition | settings | seeds | zero-shot | "
        "accuracy | probe CV | probe | difference | passes | bytes up | bytes down | seconds |",
        "|---" * 17 + "|",
    ]
    for key, group in groups.items():
        mean = {name: np.mean([row[name] for row in group]) for name in _AVERAGED}
        lines.append(
            "| " + " | ".join(map(str, key)) + f" | {len(group)} | {mean['zero_shot']:.1%} | "
            f"{mean['accuracy']:.1%} | {mean['probe_cv']:.1%} | {mean['probe']:.1%} | "
            f"{100 * (mean['accuracy'] - mean['probe_cv']):+.1f} | {mean['passes']:,.0f} | "
            f"{mean['bytes_up']:,.0f} | {mean['bytes_down']:,.0f} | {mean['seconds']:.0f} |"
        )
    return "\n".join(lines) + "\n"


_AVERAGED = (
    *("zero_shot", "accuracy", "probe_cv", "probe", "passes"),
    *("bytes_up", "bytes_down", "seconds"),
)


def _key(row: dict[str, Any]) -> str:
    names = "data_set", "clients", "alpha", "condition", "seed", "set"
    return json.dumps([row[name] for name in names], sort_keys=True)


def listed(text: str) -> list[str]:
    """Return the parts of a list with commas."""
    return text.split(",")


if __name__ == "__main__":
    main()
