"""The comparison of methods on one device: no training, zeroth order, true gradients.

    python -m benchmarks.accuracy.tune_table --model MODEL --data DATA --task sst2 --out runs/table

Every row is run for several seeds, which draw the data, the batches and the directions; the table
shows mean ± standard deviation of the task's metric on the test split, of the state that was best
on the validation split. Zeroth-order rows take equally many steps of equally many rows: q·B is
constant. A table that was interrupted goes on from its folder.

Learning rates decide: give those that suit the model, or the defaults of `samara tune` are taken.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from samara.client.tuning.run import read_result, tune
from samara.client.tuning.settings import TuneSettings
from samara.shared.errors import ModelError
from samara.shared.files import write_durably
from samara.shared.settings import parse_assignment

Settings = dict[str, Any]


def rows_of(arguments: argparse.Namespace) -> Iterator[tuple[str, Settings]]:
    """Every row's name and settings."""
    yield "zero-shot", {"optimizer": "zero-shot"}
    yield "in context", {"optimizer": "icl"}
    yield "linear probe", {"optimizer": "linear-probe"}
    rows = arguments.rows
    zeroth = {"steps": arguments.steps, "validate-every": arguments.validate_every}
    for queries in (1, *arguments.queries):
        yield (
            f"P-RGE LoRA-FA, q = {queries}, B = {rows // queries}",
            zeroth
            | {"optimizer": "prge", "queries": queries, "batch": rows // queries}
            | {"learning-rate": arguments.prge_rate or "auto", "epsilon": arguments.prge_epsilon},
        )
    yield (
        f"MeZO, q = 1, B = {rows}",
        zeroth
        | {"optimizer": "mezo", "space": "full", "batch": rows}
        | {"learning-rate": arguments.mezo_rate or "auto", "epsilon": arguments.mezo_epsilon},
    )
    steps = arguments.first_order_steps
    first = {"optimizer": "fo-adam", "steps": steps, "validate-every": max(1, steps // 10)}
    for space, rate in (("lora-fa", arguments.adapter_rate), ("full", arguments.full_rate)):
        yield (
            f"Adam {space}, B = {rows}",
            first | {"space": space, "batch": rows, "learning-rate": rate or "auto"},
        )


def measured(
    name: str, settings: Settings, seeds: Sequence[int], out: Path
) -> list[dict[str, Any]] | None:
    """Results of a row, or None where the model cannot do it."""
    found = []
    for seed in seeds:
        folder = out / f"{name.replace(', ', '-').replace(' ', '')}-{seed}"
        try:
            run = tune(TuneSettings.of(settings | {"seed": seed, "out": str(folder)}, name))
        except ModelError as error:
            if settings["optimizer"] != "icl":
                raise
            print(f"{name}: left out: {error}", flush=True)
            return None
        result = read_result(run)
        value = result["test"][result["metric"]]
        print(f"{name}, seed {seed}: {value:.2%} in {result['seconds']:.1f} s", flush=True)
        found.append(result)
    return found


def table_of(results: Mapping[str, list[dict[str, Any]]]) -> Table:
    """Mean ± standard deviation over seeds, row by row."""
    metric = next(iter(results.values()))[0]["metric"]
    table = Table(title=f"{metric} on the test split, mean ± standard deviation", box=None)
    table.add_column("method", no_wrap=True)
    for column in ("test", "validation", "loss", "best steps", "seconds"):
        table.add_column(column, justify="right")
    for name, found in results.items():
        test, validation = (
            np.array([100 * result[split][metric] for result in found])
            for split in ("test", "validation")
        )
        loss = np.mean([result["test"]["loss"] for result in found])
        best = [str(result["best_step"]) for result in found if "best_step" in result]
        spread = test.std(ddof=1) if len(test) > 1 else 0.0
        table.add_row(
            name,
            f"{test.mean():.1f} ± {spread:.1f}",
            f"{validation.mean():.1f}",
            f"{loss:.3f}",
            ", ".join(best),
            f"{np.mean([result['seconds'] for result in found]):.0f}",
        )
    return table


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--task", required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of all runs")
    parser.add_argument("--seeds", type=numbers, default=[0, 1, 2])
    parser.add_argument("--rows", type=int, default=16, help="q·B of a zeroth-order step")
    parser.add_argument("--queries", type=numbers, default=[4, 16], help="q beside 1")
    parser.add_argument("--steps", type=int, default=1000, help="of zeroth order")
    parser.add_argument("--first-order-steps", type=int, default=200)
    parser.add_argument("--validate-every", type=int, default=100)
    parser.add_argument("--prge-rate", type=float, default=0.0)
    parser.add_argument("--prge-epsilon", type=float, default=0.0)
    parser.add_argument("--mezo-rate", type=float, default=0.0)
    parser.add_argument("--mezo-epsilon", type=float, default=0.0)
    parser.add_argument("--adapter-rate", type=float, default=0.0)
    parser.add_argument("--full-rate", type=float, default=0.0)
    parser.add_argument("--only", default="", help="rows whose name begins so, comma-separated")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    if any(arguments.rows % queries for queries in arguments.queries):
        parser.error("--rows must be a multiple of every number of --queries")
    common: Settings = {
        "model.path": arguments.model,
        "data.path": arguments.data,
        "task": arguments.task,
    } | dict(parse_assignment(assignment) for assignment in arguments.set)
    wanted = tuple(arguments.only.split(",")) if arguments.only else ("",)
    results = {}
    for name, settings in rows_of(arguments):
        if name.startswith(wanted):
            found = measured(name, common | settings, arguments.seeds, arguments.out)
            if found:
                results[name] = found
    if results:
        Console().print(table_of(results))
        file = arguments.out / "table.json"
        write_durably(file, (json.dumps(results, indent=1, sort_keys=True) + "\n").encode())
        print(f"all results: {file}")


if __name__ == "__main__":
    main()
