"""The command `samara rehearse`, which runs server and clients within the limits of devices."""

from pathlib import Path
from typing import Annotated

import typer


def rehearse(
    scenario: Annotated[Path, typer.Argument(help="Scenario file with fleet.devices.")],
    model: Annotated[
        str | None, typer.Option(help="Model folder, or model name on the hub.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="File, folder, or data set on the hub.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: key=value. Repeatable.")
    ] = None,
    dilation: Annotated[
        float,
        typer.Option(min=1, help="Seconds on this machine per second of the devices."),
    ] = 1.0,
    out: Annotated[
        Path | None, typer.Option("--out", help="New folder for run, clients and report.")
    ] = None,
) -> None:
    """Run a server and its clients as real processes within their devices' limits; needs root.

    The profiles in fleet.devices set memory, speed and links; rehearsal.faults adds faults.

    Example: samara rehearse field.toml --dilation 12 --out runs/rehearsal
    """
    from rich.console import Console

    from samara.shared.settings.config import load_scenario
    from samara.shared.settings.scenarios import scenario_file
    from samara.simulations.progress.progress import stoppable
    from samara.simulations.rehearsal.report import write_report
    from samara.simulations.rehearsal.run import rehearse as run
    from samara.simulations.rehearsal.table import report_table

    places = {"model.path": model, "data.path": data}
    given = [f"{key}={place}" for key, place in places.items() if place is not None]
    config = load_scenario(scenario_file(scenario), [*given, *(settings or [])])
    console = Console()

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    with stoppable("samara: stopped; all processes of the rehearsal have ended"):
        report, folder = run(config, dilation, out, say)
    file = write_report(report, folder)
    console.print(report_table(report))
    for fault in report.faults:
        say(fault.describe())
    say(f"the report as JSON: {file}")
    raise typer.Exit(0 if report.is_good else 1)
