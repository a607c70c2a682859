"""A table of a paper beside measurements or predictions of this machine.

    python -m benchmarks.papers mezo-1 --model MODEL --data sst2=DATA --data rte=DATA --out FOLDER
    python -m benchmarks.papers p-rge-3
    python -m benchmarks.papers zo2-4 --measure

By default (`--scale`), rows train few steps without a grid, for small machines. `--paper` trains
with the paper's settings at every point of its grid, and shows the point with the best validation
result. A line below the table lists each row's differences from the paper.

Rows that train are runs of `samara tune`, one for every seed and every task with data. After an
interruption, the table shows its existing results, and the same command continues. Rows with equal
settings share one run, also between tables with the same `--out`. The time and memory model
predicts rows that cannot run here; these rows are marked. With `--measure`, results of another
benchmark are printed below the table. Every number is shown beside the paper's.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.papers.table import PaperTable, Prediction, Row, read_table, table_names
from samara.client.tuning.methods import FIRST_ORDER
from samara.client.tuning.run import read_result, tune
from samara.client.tuning.settings import TuneSettings
from samara.devices.hardware.estimate import StepEstimate, estimate_step
from samara.devices.hardware.full_parameter_estimate import (
    FullParameterEstimate,
    FullParameterWorkload,
    estimate_full_parameters,
)
from samara.devices.hardware.model_shape import model_shape
from samara.devices.hardware.offload_estimate import (
    FirstOrderEstimate,
    FirstOrderWorkload,
    estimate_first_order,
)
from samara.devices.hardware.profile import load_device
from samara.devices.hardware.roofline import Workload
from samara.shared.errors import ConfigError, ModelError, SamaraError, TaskError
from samara.shared.settings.setting import parse_assignment
from samara.shared.storage.files import write_durably

_LONGEST_NAME = 100
_DIGITS = {"seconds": 2, "GiB of weights": 2, "GiB": 1}
Figures = dict[str, float]
"""``metric`` on the test split. Trained rows also have the validation ``loss`` after the last step
and ``before`` the first.
"""
Found = dict[str, dict[str, list[Figures]]]
"""Figures of every seed, by row and task."""


def settings_of(
    row: Row, task: str, seed: int, arguments: argparse.Namespace
) -> list[TuneSettings]:
    """Return the settings of a row's runs: one, or with `--paper` one per point of the grid."""
    settings, hyperparameters = row.on(task)
    if not (arguments.paper and hyperparameters):
        return [_settings_of(row, settings, task, seed, arguments)]
    return [
        _settings_of(row, settings | trial, task, seed, arguments)
        for trial in hyperparameters.trials(task)
    ]


def _settings_of(
    row: Row, settings: dict[str, Any], task: str, seed: int, arguments: argparse.Namespace
) -> TuneSettings:
    first_order = settings["optimizer"] in FIRST_ORDER
    steps = arguments.first_order_steps if first_order else arguments.steps
    own: dict[str, Any] = {"steps": steps, "validate-every": max(1, steps // 4), **settings}
    own |= dict(map(parse_assignment, arguments.set))
    given = _given_for(row, arguments.row)
    own |= given
    name = ",".join(f"{key}={own[key]}" for key in sorted(settings | given))
    if len(name) > _LONGEST_NAME:
        name = sha256(name.encode()).hexdigest()[:16]
    folder = arguments.out / task / name / f"seed-{seed}"
    own |= {"model.path": arguments.model, "data.path": arguments.data[task], "task": task}
    return TuneSettings.of(own | {"seed": seed, "out": str(folder)}, row.name)


def _given_for(row: Row, assignments: Sequence[str]) -> dict[str, Any]:
    """Return the command line's settings for one row."""
    named = (assignment.partition(":") for assignment in assignments)
    return dict(parse_assignment(setting) for name, _, setting in named if name == row.name)


def check(table: PaperTable, arguments: argparse.Namespace) -> None:
    """Check that the table has the requested rows and tasks, and that the settings can be combined.

    Raises:
        ConfigError: if the check fails; the message names the option and its possible values.
    """
    columns, names = list(map(str, table.columns)), [row.name for row in table.rows]
    for option, given, known in (
        ("--data", arguments.data, [] if table.vary else columns),
        ("--row", [assignment.partition(":")[0] for assignment in arguments.row], names),
    ):
        if unknown := [name for name in given if name not in known]:
            there = ", ".join(known) or "none"
            raise ConfigError(
                f"{option}: the table has no {', '.join(unknown)}; use one of {there}"
            )
    for row in table.rows:
        for task in arguments.data if row.settings else ():
            settings_of(row, task, arguments.seeds[0], arguments)


def departures(row: Row, task: str, arguments: argparse.Namespace) -> str:
    """Return a row's differences from the settings that the paper states for a task."""
    _, hyperparameters = row.on(task)
    if hyperparameters is None:
        return ""
    runs = [run.complete(1).flat() for run in settings_of(row, task, 0, arguments)]
    differing = []
    for key, paper in hyperparameters.values(task).items():
        here = list(dict.fromkeys(run[key] for run in runs))
        if here != paper:
            differing.append(f"{key} {_listed(here)} for {_listed(paper)}")
    return "; ".join(differing)


def _listed(values: Sequence[Any]) -> str:
    return "/".join(f"{value:,}" if isinstance(value, int) else f"{value}" for value in values)


def measure(table: PaperTable, arguments: argparse.Namespace, console: Console) -> Found:
    """Train all trainable rows, seed by seed, and return all results so far, even after Ctrl-C."""
    found: Found = {}
    try:
        for seed in arguments.seeds:
            for task in (str(task) for task in table.columns if task in arguments.data):
                for row in table.rows:
                    if row.settings:
                        _measure_cell(row, task, seed, arguments, found, console)
    except KeyboardInterrupt:
        console.print(
            "stopped: the results so far are kept; run the same command again to continue"
        )
    return found


def _measure_cell(
    row: Row, task: str, seed: int, arguments: argparse.Namespace, found: Found, console: Console
) -> None:
    console.print(f"{task}, seed {seed}: {row.name}", highlight=False)
    try:
        results = [read_result(tune(run)) for run in settings_of(row, task, seed, arguments)]
    except (ModelError, TaskError) as error:  # such as in-context learning of an encoder
        console.print(f"  left out: {error}", markup=False)
        return
    result = max(results, key=_on_validation)
    figures = {"metric": result["test"][result["metric"]]}
    if curve := result.get("curve"):
        figures |= {"before": curve[0]["loss"], "loss": curve[-1]["loss"]}
    console.print(f"  {100 * figures['metric']:.1f} in {result['seconds']:.0f} s", highlight=False)
    found.setdefault(row.name, {}).setdefault(task, []).append(figures)


def _on_validation(result: dict[str, Any]) -> float:
    """Return the metric by which a point of a grid is chosen."""
    return float(result["validation"][result["metric"]]) if "validation" in result else 0.0


def predicted(prediction: Prediction, table: PaperTable) -> list[tuple[float, bool]]:
    """Return every column's prediction, in the unit of its quantity, and whether the step fits."""
    return [_predict(prediction, table.vary, column) for column in table.columns]


def _predict(prediction: Prediction, vary: str, column: str | int) -> tuple[float, bool]:
    # The papers use longer sequences than the released models support.
    shape = model_shape(prediction.model.format(str(column).lower()))
    shape, device = replace(shape, context=None), load_device(prediction.device)
    work = prediction.work | ({} if vary == "model" else {vary: column})
    estimate: StepEstimate | FullParameterEstimate | FirstOrderEstimate
    if prediction.step == "adapters":
        estimate = estimate_step(shape, device, Workload(**work))
        seconds = estimate.time.total
    elif prediction.step == "all-parameters":
        estimate = estimate_full_parameters(shape, device, FullParameterWorkload(**work))
        seconds = estimate.time.total
    else:
        estimate = estimate_first_order(shape, device, FirstOrderWorkload(**work))
        seconds = estimate.seconds
    tokens = estimate.work.batch * estimate.work.sequence
    peak = estimate.memory.total / 2**20
    values = {"seconds": seconds, "tokens/s": tokens / seconds, "MiB": peak, "GiB": peak / 2**10}
    if isinstance(estimate, StepEstimate):
        values["GiB of weights"] = (estimate.memory.blocks + estimate.memory.others) / 2**30
    return values[prediction.quantity], estimate.fits


def _predicted_cells(row: Row, table: PaperTable) -> Iterator[str]:
    """Yield each prediction with its error, and a star if the model was fitted to the cell."""
    assert row.predict is not None
    quantity = row.predict.quantity
    for (value, fits), paper, column in zip(
        predicted(row.predict, table), row.paper, table.columns, strict=True
    ):
        digits = _DIGITS.get(quantity, 1 if value < 100 else 0)
        text = f"{value:,.{digits}f}"
        if isinstance(paper, str):
            yield text if fits else "does not fit"
        else:
            star = "*" if column in row.predict.fitted else ""
            yield f"{text} ({value / paper - 1:+.0%}){star}"


def shown(table: PaperTable, found: Found) -> Table:
    """Return a table of the paper's numbers, with the measurement or prediction below each.

    The loss distinguishes methods when a few steps change no answer.
    """
    view = Table(title=table.title, box=None)
    view.add_column("")
    for column in table.columns:
        view.add_column(f"{table.vary} {column}".strip(), justify="right")
    for row in table.rows:
        view.add_row(row.name, *map(str, row.paper))
        if row.missing:
            view.add_row(f"  not run: {row.missing}", style="dim")
        elif row.predict is not None:
            view.add_row("  predicted", *_predicted_cells(row, table), style="cyan")
        elif row.name in found:
            own = [found[row.name].get(str(column), []) for column in table.columns]
            view.add_row("  here", *map(_mean_metric, own), style="bold")
            if any("loss" in figures for cell in own for figures in cell):
                view.add_row("  loss", *map(_mean_losses, own), style="dim")
    return view


def _mean_metric(cell: Sequence[Figures]) -> str:
    if not cell:
        return ""
    numbers = 100 * np.array([figures["metric"] for figures in cell])
    return f"{numbers.mean():.1f}" + (f" ± {numbers.std(ddof=1):.1f}" if len(cell) > 1 else "")


def _mean_losses(cell: Sequence[Figures]) -> str:
    """Return the mean validation loss before the first and after the last step."""
    if not cell:
        return ""
    before, after = (np.mean([figures[name] for figures in cell]) for name in ("before", "loss"))
    return f"{before:.3f} → {after:.3f}"


def differences(table: PaperTable, arguments: argparse.Namespace) -> list[str]:
    """Return sentences about the differences between the paper and these measurements."""
    lines = [f"The paper has {table.model}."]
    if any(row.predict and row.predict.fitted for row in table.rows):
        lines.append("* the model of time and memory was fitted to this cell")
    if arguments.model:
        lines.append(
            f"Here: {'/'.join(Path(arguments.model).parts[-2:])}, {_scale(arguments)}, "
            f"seeds {', '.join(map(str, arguments.seeds))}"
            + "".join(f", {assignment}" for assignment in (*arguments.set, *arguments.row))
            + ("." if arguments.paper else ". No grid was searched.")
        )
    for row in table.rows:
        for task in map(str, table.columns if row.settings else ()):
            if task in arguments.data and (differing := departures(row, task, arguments)):
                lines.append(f"{row.name}, {task}: {differing}")
    return lines + list(table.differs)


def _scale(arguments: argparse.Namespace) -> str:
    if arguments.paper:
        return "the papers' steps and grids"
    return f"{arguments.steps:,} zeroth-order and {arguments.first_order_steps:,} first-order steps"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("table", choices=table_names())
    parser.add_argument("--model", default="")
    parser.add_argument("--data", action="append", default=[], metavar="TASK=PATH")
    parser.add_argument("--out", type=Path, help="folder of all runs")
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=[0])
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--paper", action="store_true", help="the papers' own settings and grids")
    sizes.add_argument("--scale", action="store_true", help="few steps, no grid (the default)")
    parser.add_argument("--steps", type=int, default=1000, help="of zeroth order")
    parser.add_argument("--first-order-steps", type=int, default=200)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--row", action="append", default=[], metavar="ROW:KEY=VALUE")
    parser.add_argument("--measure", action="store_true", help="run the table's own benchmark too")
    arguments = parser.parse_args()
    if wrong := [given for given in arguments.data if "=" not in given]:
        parser.error(f"--data {wrong[0]}: give TASK=PATH")
    arguments.data = dict(given.split("=", 1) for given in arguments.data)
    table, console = read_table(arguments.table), Console()
    if arguments.measure and not table.benchmark:
        parser.error(f"--measure: the table {arguments.table} has no benchmark; give --data")
    found: Found = {}
    if arguments.data:
        if not (arguments.model and arguments.out):
            parser.error("--data also needs --model and --out")
        try:
            check(table, arguments)
            found = measure(table, arguments, console)
        except SamaraError as error:
            raise SystemExit(str(error)) from None
        file = arguments.out / f"{arguments.table}.json"
        write_durably(file, (json.dumps(found, indent=1) + "\n").encode())
    console.print(shown(table, found))
    for line in differences(table, arguments):
        console.print(line, markup=False, highlight=False)
    if table.benchmark:
        words = ["-m", *table.benchmark.split()]
        console.print(f"Here: python {' '.join(words)}", highlight=False)
    if arguments.measure:
        subprocess.run([sys.executable, *words], check=True)


if __name__ == "__main__":
    main()
