"""The commands that run federations on this machine, and compare their runs."""

import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from samara.shared.settings.config import RunConfig


class Engine(StrEnum):
    """The engine that delivers messages between server and clients."""

    IN_PROCESS = "in-process"
    FLOWER = "flower"


def demo(
    seed: Annotated[
        int, typer.Option(help="Random seed of the generated writers and of the run.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results; default runs/TASK-ID.")
    ] = None,
) -> None:
    """Run a small federation: eight clients, generated messages, and the embedded model.

    Example: samara demo --out runs/demo
    """
    from samara.shared.settings.config import RunConfig

    settings = {"seed": seed, "data.seed": seed, "out": str(out.resolve()) if out else ""}
    _run(RunConfig.of(settings, "demo"), Engine.IN_PROCESS)


def simulate(
    scenario: Annotated[
        Path | None, typer.Argument(help="Scenario file, or name of a shipped scenario.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model folder, or model name on the hub.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="File, folder, or data set on the hub.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Override a setting (docs/reference/settings.md): key=value. Repeatable."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results; default runs/TASK-ID.")
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="in-process, or Flower's simulation (extra: samara-fl\\[ray]).")
    ] = Engine.IN_PROCESS,
    cohorts_from: Annotated[
        Path | None, typer.Option("--cohorts-from", help="Repeat the cohorts of this run.")
    ] = None,
    clients: Annotated[
        list[Path] | None,
        typer.Option("--client", help="Folder of a client of --cohorts-from. Repeatable."),
    ] = None,
    sweep: Annotated[
        Path | None,
        typer.Option("--sweep", help="Search the settings in this file by validation accuracy."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Run once per seed, such as 0,1,2, and show intervals.")
    ] = None,
    fed_avg: Annotated[
        float | None,
        typer.Option(help="Also run FedAvg on LoRA and LoRA-FA with this learning rate."),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Show scenarios, tasks, and the runs in runs/.")
    ] = False,
) -> None:
    """Run a federation of simulated clients on this machine.

    Example: samara simulate sst2 --data DATA --model MODEL --out runs/first
    """
    if list_:
        _list()
        return
    if scenario is None:
        _explain()
    from samara.shared.errors import ConfigError
    from samara.shared.settings.config import load_scenario
    from samara.shared.settings.scenarios import scenario_file

    if seeds is not None and sweep is not None:
        raise ConfigError(
            "--seeds: a sweep chooses settings with one seed; leave out --seeds or --sweep"
        )
    places = {"model.path": model, "data.path": data}
    given = [f"{key}={place}" for key, place in places.items() if place is not None]
    assignments = [*given, *(settings or [])]
    if sweep is not None:
        _sweep(load_scenario(scenario_file(scenario), assignments), sweep, out)
        return
    assignments += [f"out={out.resolve()}"] if out else []
    config = load_scenario(scenario_file(scenario), assignments)
    if seeds is not None:
        if cohorts_from or clients:
            raise ConfigError(
                "--seeds: a recorded run has one seed; leave out --seeds or --cohorts-from"
            )
        if fed_avg is not None:
            raise ConfigError(
                "--fed-avg: FedAvg is compared with a single run; leave out --seeds or --fed-avg"
            )
        file = scenario_file(scenario)
        _run_seeds(lambda seed: load_scenario(file, [*assignments, f"seed={seed}"]), seeds, engine)
        return
    if fed_avg is not None:
        from samara.simulations.comparison.fed_avg import check_fed_avg

        check_fed_avg(config)
    folder = _run(config, engine, cohorts_from, clients or [])
    if fed_avg is not None:
        _compare_with_fed_avg(folder, fed_avg)


def _explain() -> NoReturn:
    """Raise an error that lists the available scenarios.

    Raises:
        ConfigError: always, because no scenario was given; the message explains how to get one.
    """
    from rich.console import Console

    from samara.shared.errors import ConfigError
    from samara.simulations.listing import scenarios_table

    Console().print(scenarios_table(), "")
    raise ConfigError(
        "no scenario is given; give the name of one of these scenarios, or a TOML file. "
        "`samara new DIR` writes a file for your own data and model; `samara demo` needs no file"
    )


def _list() -> None:
    from rich.console import Console

    from samara.shared.settings.runs import RUNS_FOLDER
    from samara.simulations.listing import runs_table, scenarios_table, tasks_table

    console = Console()
    console.print(scenarios_table(), "")
    console.print(tasks_table(), "")
    console.print(runs_table(RUNS_FOLDER))


def _sweep(base: "RunConfig", file: Path, out: Path | None) -> None:
    """Search settings for each method, and print every run's validation results."""
    from rich.console import Console

    from samara.shared.machine.process import HUGE_PAGES
    from samara.shared.results.result import RunResult
    from samara.simulations.experiments.experiments import run_federation
    from samara.simulations.experiments.sweep import Sweep, validation_figures
    from samara.simulations.experiments.sweep import sweep as run_sweep
    from samara.simulations.progress.progress import stoppable, watched

    plan = Sweep.read(file)
    folder = out or Path("runs/sweep")

    def run(config: "RunConfig") -> tuple[float, float]:
        ended = run_federation(config, watched(config, brief=True), writes=False)
        return validation_figures(RunResult.read(ended))

    os.environ.update(HUGE_PAGES)
    console = Console()
    with stoppable("samara: stopped; the same command continues the sweep"):
        for trial in run_sweep(base, plan, run, folder):
            settings = ", ".join(f"{key} = {value}" for key, value in trial.choices.items())
            console.print(
                f"{trial.method}, rung {trial.rung}, trial {trial.number}: "
                f"{trial.accuracy:.2%}, loss {trial.loss:.4f} ({settings})",
                highlight=False,
                soft_wrap=True,
            )
    console.print(f"written: sweep.json and one METHOD.toml per method, in {folder}", markup=False)


def _run(
    config: "RunConfig",
    engine: Engine,
    cohorts_from: Path | None = None,
    homes: Sequence[Path] = (),
) -> Path:
    from samara.shared.machine.process import HUGE_PAGES
    from samara.shared.results.result import RunResult
    from samara.simulations.experiments.experiments import run_federation
    from samara.simulations.progress.progress import stoppable, watched
    from samara.simulations.report.client_curves import write_curves
    from samara.simulations.report.terminal import print_result

    os.environ.update(HUGE_PAGES)
    with stoppable():
        folder = run_federation(config, watched(config), engine.value, cohorts_from, homes)
    write_curves(folder)
    print_result(folder, RunResult.read(folder))
    return folder


def _compare_with_fed_avg(folder: Path, learning_rate: float) -> None:
    from rich.console import Console

    from samara.simulations.comparison.fed_avg import fed_avg_beside, figures_table

    console = Console()
    with console.status("FedAvg") as status:
        found = fed_avg_beside(
            folder,
            [learning_rate],
            lambda name, done, rounds: status.update(f"{name}: round {done} of {rounds}"),
        )
    console.print("", figures_table(found, "beside FedAvg"))


def _run_seeds(config_of: "Callable[[int], RunConfig]", seeds: str, engine: Engine) -> None:
    from rich.console import Console

    from samara.shared.results.result import RunResult
    from samara.simulations.comparison.seeds import (
        describe_seed_verdict,
        describe_seeds,
        seed_intervals,
    )
    from samara.simulations.experiments.experiments import parse_seeds, run_all, with_seeds
    from samara.simulations.report.terminal import seeds_table

    runs = list(with_seeds(config_of, parse_seeds(seeds)).values())
    results = list(run_all(runs, lambda each: RunResult.read(_run(each, engine))))
    intervals = seed_intervals(results)
    table = seeds_table(intervals)
    table.caption = describe_seeds([result.config for result in results])
    Console().print("", table)
    Console().print(describe_seed_verdict(intervals), style="bold", markup=False, highlight=False)


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    html: Annotated[
        Path | None, typer.Option("--html", help="Write an HTML page with figures to this file.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write every client's numbers to this file.")
    ] = None,
) -> None:
    """Compare the models of one run, or several runs, for each client, with significance tests.

    The metrics of runs that differ only in their seeds are first averaged for each client.

    Example: samara compare runs/first runs/second --html report.html
    """
    from rich.console import Console

    from samara.simulations.comparison.comparison import compare_runs
    from samara.simulations.comparison.tables import CSV_KIND, csv_of, render_comparison

    if html is not None:
        # imported before the comparison, because a library may be missing
        from samara.simulations.report.html import PAGE_KIND, page_of
    comparison = compare_runs(runs)
    for part in render_comparison(comparison):
        Console().print(part, "")
    if html is not None:
        _write(html, page_of(comparison), PAGE_KIND)
    if csv is not None:
        _write(csv, csv_of(comparison), CSV_KIND)


def _write(file: Path, text: str, kind: bytes) -> None:
    """Write an output file and print its path."""
    from rich.console import Console
    from rich.text import Text

    from samara.shared.storage.files import write_requested

    write_requested(file, text.encode(), kind)
    Console().print(Text(f"written: {file}"), soft_wrap=True)
