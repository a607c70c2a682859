"""The commands that run federations, or tune one model, on this machine."""

import logging
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shared.config import RunConfig

adapter = typer.Typer(help="Carry adapters to other tools.", no_args_is_help=True)


class Engine(StrEnum):
    """What delivers the messages."""

    IN_PROCESS = "in-process"
    FLOWER = "flower"


def demo(
    seed: Annotated[int, typer.Option(help="Of the community of writers and of the run.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results; default runs/<run id>.")
    ] = None,
) -> None:
    """Eight emulated clients learn from messages that come with Samara, as does the model.

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
        list[str] | None, typer.Option("--set", help="Override a setting: key=value. Repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results; default runs/<run id>.")
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="in-process, or Flower's simulation (extra: samara[ray]).")
    ] = Engine.IN_PROCESS,
) -> None:
    """Run a federation of emulated clients in this process.

    Example: samara simulate sst2 --set data.path=DATA --set model.path=MODEL --out runs/first
    """
    from shared.config import load_scenario

    assignments = [*(settings or []), *([f"out={out.resolve()}"] if out else [])]
    _run(load_scenario(_scenario_file(scenario), assignments), engine)


def _run(config: "RunConfig", engine: Engine) -> None:
    from server.store import read_result
    from simulations.progress import watched
    from simulations.report import print_result

    with watched(config) as on_message:
        from simulations.simulate import simulate as run

        logging.getLogger("flwr").setLevel(logging.WARNING)
        folder = run(config, on_message, engine.value)
    print_result(folder, read_result(folder))


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
) -> None:
    """Compare runs client by client.

    Example: samara compare runs/first runs/second
    """
    from rich.console import Console

    from simulations.compare import compared

    for table in compared(runs):
        Console().print(table, "")


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
    learning_rate: Annotated[float | None, typer.Option(help="Default: it is found.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Default by space.")] = None,
    validate_every: Annotated[int | None, typer.Option(help="Steps; 100.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of draw, batches, directions.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting: key=value. Repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results; default runs/<run id>.")
    ] = None,
) -> None:
    """Tune a model on one device, or measure a baseline; little data, drawn by a seed.

    Example: samara tune --method mezo --task sst2 --model MODEL --data DATA
    """
    from client.tuning.settings import TuneSettings
    from shared.config import parse_assignment
    from simulations.progress import watched_tuning
    from simulations.report import print_tuning

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
    out: Annotated[Path, typer.Option("--out", help="Folder for the adapter.")],
    client: Annotated[
        int | None, typer.Option("--client", help="Add this client's private rounds.")
    ] = None,
) -> None:
    """Write a PEFT LoRA adapter that PeftModel.from_pretrained loads.

    Example: samara adapter export runs/first --client 3 --out adapters/third
    """
    from rich.console import Console

    from simulations.adapter import export as write

    left_out = write(run, client, out)
    console = Console()
    for name, numbers in left_out.items():
        console.print(f"Left out, PEFT has no place for it: {name} {numbers}")
    console.print(f"The adapter is in {out}")


def _scenario_file(scenario: Path) -> Path:
    from importlib import resources

    shipped: Any = resources.files("simulations") / "scenarios" / f"{scenario}.toml"
    return Path(str(shipped)) if not scenario.exists() and shipped.is_file() else scenario
