"""The commands that run federations, or tune one model, on this machine."""

import logging
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shared.config import RunConfig

adapter = typer.Typer(help="Look at models of runs, carry them away.", no_args_is_help=True)


class Form(StrEnum):
    """Form of an exported model."""

    PEFT = "peft"
    LEDGER = "ledger"


class Engine(StrEnum):
    """Engine that delivers the messages."""

    IN_PROCESS = "in-process"
    FLOWER = "flower"


def demo(
    seed: Annotated[int, typer.Option(help="Of the community of writers and of the run.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results; default runs/<run id>.")
    ] = None,
) -> None:
    """Run a small federation: eight clients, generated messages, and the embedded model.

    Example: samara demo --out runs/demo
    """
    from shared.config import RunConfig

    settings = {
        "seed": seed,
        "data.seed": seed,
        "learning-rate": 0.1,
        "personal.learning-rate": 0.1,
        "out": str(out.resolve()) if out else "",
    }
    _run(RunConfig.of(settings, "demo"), Engine.IN_PROCESS)


def simulate(
    scenario: Annotated[Path, typer.Argument(help="Scenario file, or the name of a shipped one.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of docs/settings.md: key=value. Repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results; default runs/<run id>.")
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="in-process, or Flower's simulation (extra: samara-fl\\[ray]).")
    ] = Engine.IN_PROCESS,
    cohorts_from: Annotated[
        Path | None, typer.Option("--cohorts-from", help="Repeat the cohorts of this run.")
    ] = None,
    clients: Annotated[
        list[Path] | None,
        typer.Option("--client", help="Folder of a live client of that run. Repeatable."),
    ] = None,
    sweep: Annotated[
        Path | None, typer.Option("--sweep", help="Find settings on validation, as this file says.")
    ] = None,
) -> None:
    """Run a federation of simulated clients on this machine.

    Example: samara simulate sst2 --set data.path=DATA --set model.path=MODEL --out runs/first
    """
    from shared.config import load_scenario

    if sweep is not None:
        _sweep(load_scenario(_scenario_file(scenario), settings or []), sweep, out)
        return
    assignments = [*(settings or []), *([f"out={out.resolve()}"] if out else [])]
    config = load_scenario(_scenario_file(scenario), assignments)
    _run(config, engine, cohorts_from, clients or [])


def _sweep(base: "RunConfig", file: Path, out: Path | None) -> None:
    """Search settings for each method, and print what every run reached on validation."""
    from rich.console import Console

    from shared.result import RunResult
    from simulations.progress import watched
    from simulations.sweep import Sweep, validation_figures
    from simulations.sweep import sweep as run_all

    plan, folder = Sweep.read(file), out or Path("runs/sweep")

    def run(config: "RunConfig") -> tuple[float, float]:
        with watched(config, brief=True) as on_message:
            from simulations.simulate import simulate as run_one

            logging.getLogger("flwr").setLevel(logging.WARNING)
            return validation_figures(RunResult.read(run_one(config, on_message)))

    console = Console()
    for trial in run_all(base, plan, run, folder):
        settings = ", ".join(f"{key} = {value}" for key, value in trial.choices.items())
        console.print(
            f"{trial.method}, rung {trial.rung}, trial {trial.number}: "
            f"{trial.accuracy:.2%}, loss {trial.loss:.4f} ({settings})",
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"METHOD.toml of each and sweep.json are in {folder}", markup=False)


def _run(
    config: "RunConfig",
    engine: Engine,
    cohorts_from: Path | None = None,
    homes: Sequence[Path] = (),
) -> None:
    from shared.result import RunResult
    from simulations.client_curves import write_curves
    from simulations.progress import watched
    from simulations.report.terminal import print_result

    with watched(config) as on_message:
        from simulations.simulate import simulate as run

        logging.getLogger("flwr").setLevel(logging.WARNING)
        folder = run(config, on_message, engine.value, cohorts_from, homes)
    write_curves(folder)
    print_result(folder, RunResult.read(folder))


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with figures here.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write every client's figures here.")
    ] = None,
) -> None:
    """Compare the models of one run, or several runs, client by client, with tests.

    Runs that differ in their seeds alone are averaged within each client first.

    Example: samara compare runs/first runs/second --html report.html
    """
    from rich.console import Console

    from simulations.comparison.comparison import compare_runs
    from simulations.comparison.tables import csv_of, render_comparison

    comparison = compare_runs(runs)
    for part in render_comparison(comparison):
        Console().print(part, "")
    if html is not None:
        from simulations.report.html import page_of

        _write(html, page_of(comparison))
    if csv is not None:
        _write(csv, csv_of(comparison))


def _write(file: Path, text: str) -> None:
    """Write a requested file and print its path."""
    from rich.console import Console
    from rich.text import Text

    from shared.errors import SamaraError
    from shared.files import write_durably

    try:
        write_durably(file, text.encode())
    except OSError as error:
        raise SamaraError(f"{file}: cannot be written: {error.strerror}") from error
    Console().print(Text(f"written: {file}"), soft_wrap=True)


def tune(
    method: Annotated[
        str,
        typer.Option(
            help="prge, mezo, mezo-momentum, mezo-adam, fo-adam, zero-shot, icl, linear-probe."
        ),
    ] = "prge",
    space: Annotated[
        str | None, typer.Option(help="lora-fa, lora, prefix, full; default the method's.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Shipped task, or a task file.")] = None,
    model: Annotated[str | None, typer.Option(help="Model folder, or name on the hub.")] = None,
    data: Annotated[str | None, typer.Option(help="File, folder, or name on the hub.")] = None,
    train: Annotated[int | None, typer.Option(help="Training examples; 1,000.")] = None,
    validation: Annotated[int | None, typer.Option(help="Validation examples; 500.")] = None,
    test: Annotated[int | None, typer.Option(help="Test examples; 1,000.")] = None,
    steps: Annotated[int | None, typer.Option(help="How many; 1,000.")] = None,
    queries: Annotated[int | None, typer.Option(help="Directions of a step.")] = None,
    batch: Annotated[int | None, typer.Option(help="Examples of a step; 16.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Default: automatic.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Default by space.")] = None,
    validate_every: Annotated[int | None, typer.Option(help="Steps; 100.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of draw, batches, directions.")] = None,
    stream: Annotated[
        str | None, typer.Option(help="auto, host, disk: where blocks wait; default off.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of docs/tune.md: key=value. Repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results; default runs/<run id>.")
    ] = None,
) -> None:
    """Tune a model on one device, or measure a baseline; little data, drawn by a seed.

    Example: samara tune --method mezo --task sst2 --model MODEL --data DATA
    """
    from client.tuning.settings import TuneSettings
    from shared.settings import parse_assignment
    from simulations.progress import watched_tuning
    from simulations.report.terminal import print_tuning

    options: dict[str, Any] = {
        "method": method,
        "space": space,
        "task": task,
        "model.path": model,
        "data.path": data,
        "data.train": train,
        "data.validation": validation,
        "data.test": test,
        "steps": steps,
        "queries": queries,
        "batch": batch,
        "learning-rate": learning_rate,
        "epsilon": epsilon,
        "validate-every": validate_every,
        "seed": seed,
        "model.stream": stream,
        "out": str(out.resolve()) if out else None,
    }
    given = {key: value for key, value in options.items() if value is not None}
    given |= dict(parse_assignment(assignment) for assignment in settings or [])
    wanted = TuneSettings.of(given, "tune")
    with watched_tuning() as on_step:
        from client.tuning.run import read_result
        from client.tuning.run import tune as run

        folder = run(wanted, on_step)
    print_tuning(folder, read_result(folder))


@adapter.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    out: Annotated[Path, typer.Option("--out", help="Folder, or file of the ledger form.")],
    client: Annotated[
        int | None, typer.Option("--client", help="Add this client's private rounds.")
    ] = None,
    form: Annotated[
        Form, typer.Option(help="peft, or the private rounds alone as a small ledger file.")
    ] = Form.PEFT,
) -> None:
    """Export a model of a run: a LoRA adapter for PEFT, or a client's private rounds.

    Example: samara adapter export runs/first --client 3 --out adapters/third
    """
    from rich.console import Console

    from shared.errors import ConfigError
    from simulations.adapter import export as write
    from simulations.adapter import export_ledger

    console = Console()
    if form is Form.LEDGER:
        if client is None:
            raise ConfigError("--form ledger holds a client's private rounds: give --client")
        size = export_ledger(run, client, out)
        console.print(f"{size:,} bytes are in {out}", markup=False, soft_wrap=True)
        return
    left_out = write(run, client, out)
    for name, numbers in left_out.items():
        console.print(f"Left out, PEFT has no place for it: {name} {numbers}", markup=False)
    console.print(f"The adapter is in {out}", markup=False, soft_wrap=True)


@adapter.command()
def basis(
    scenario: Annotated[Path, typer.Argument(help="Scenario file, or the name of a shipped one.")],
    out: Annotated[Path, typer.Option("--out", help="File for the basis.")],
    source: Annotated[
        str, typer.Option("--from", help="random-tokens, or a public file with a text per line.")
    ] = "random-tokens",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting: key=value. Repeatable.")
    ] = None,
) -> None:
    """Measure an informed basis for a scenario's model, adapter and task, and write it.

    Example: samara adapter basis sst2 --set model.path=MODEL --out sst2.basis
    """
    from rich.console import Console

    from shared.config import load_scenario
    from simulations.basis import write_basis

    config = load_scenario(_scenario_file(scenario), settings or [])
    for line in write_basis(config, source, out):
        Console().print(line, markup=False, highlight=False, soft_wrap=True)


@adapter.command()
def apply(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    text: Annotated[str, typer.Argument(help="A JSON object if the task reads several fields.")],
    client: Annotated[
        int | None, typer.Option("--client", help="Add this client's private rounds.")
    ] = None,
    personal: Annotated[
        Path | None, typer.Option("--personal", help="Add those of an exported ledger file.")
    ] = None,
) -> None:
    """Show the answers of the base, global and personal model to a text.

    Example: samara adapter apply runs/first "what a day" --client 3
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from shared.errors import ConfigError
    from simulations.quick_look import quick_look

    if client is not None and personal is not None:
        raise ConfigError("--client and --personal: give one of them")
    labels, models = quick_look(run, text, client, personal)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("")
    for name in models:
        table.add_column(name, justify="right")
    for index, label in enumerate(labels):
        cells = [
            Text(f"{own[index]:.1%}", style="bold" if own.argmax() == index else "")
            for own in models.values()
        ]
        table.add_row(Text(label), *cells)
    Console().print(table)


@adapter.command()
def damping(
    scenario: Annotated[Path, typer.Argument(help="Scenario file, or the name of a shipped one.")],
    out: Annotated[Path, typer.Option("--out", help="File to be written, for adapter.damping.")],
    texts: Annotated[
        Path | None,
        typer.Option("--from", help="One text per line, or JSON lines; default random tokens."),
    ] = None,
    count: Annotated[int, typer.Option(help="Most texts; 0 is all, or 256 random ones.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of docs/settings.md: key=value. Repeatable."),
    ] = None,
) -> None:
    """Measure the scales of a readout's features on texts, and write them to a file.

    Example: samara adapter damping sst2 --set model.path=MODEL --set data.path=DATA --out d.bin
    """
    from rich.console import Console

    from shared.config import load_scenario
    from simulations.readout_file import write_damping

    config = load_scenario(_scenario_file(scenario), settings or [])
    rank = write_damping(config, texts, count, out)
    Console().print(
        f"effective rank {rank:.1f}; written: {out}", markup=False, highlight=False, soft_wrap=True
    )


@adapter.command()
def diff(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    one: Annotated[int, typer.Argument(help="A client.")],
    other: Annotated[int, typer.Argument(help="Another.")],
) -> None:
    """Show the differences between the private rounds of two clients.

    Example: samara adapter diff runs/first 3 5
    """
    from math import isnan

    from rich.console import Console
    from rich.table import Table

    from simulations.adapter import diff as differences

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("tensor")
    for heading in (f"norm of {one}", f"norm of {other}", "distance", "cosine"):
        table.add_column(heading, justify="right")
    for row in differences(run, one, other):
        cosine = "" if isnan(row.cosine) else f"{row.cosine:+.3f}"
        table.add_row(row.name, f"{row.one:.4f}", f"{row.other:.4f}", f"{row.distance:.4f}", cosine)
    Console().print(table)


def _scenario_file(scenario: Path) -> Path:
    from importlib import resources

    shipped: Any = resources.files("simulations") / "scenarios" / f"{scenario}.toml"
    return Path(str(shipped)) if not scenario.exists() and shipped.is_file() else scenario
