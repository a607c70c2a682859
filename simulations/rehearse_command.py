"""The command `samara rehearse`: a server and its clients on this machine, held to devices."""

from pathlib import Path
from typing import Annotated

import typer


def rehearse(
    scenario: Annotated[
        Path, typer.Argument(help="Scenario file with fleet.devices, as of samara simulate.")
    ],
    model: Annotated[str | None, typer.Option(help="Model folder, or name on the hub.")] = None,
    data: Annotated[str | None, typer.Option(help="File, folder, or name on the hub.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: key=value. Repeatable.")
    ] = None,
    dilation: Annotated[
        float, typer.Option(min=1, help="Seconds here for a second of faster or many devices.")
    ] = 1.0,
    out: Annotated[
        Path | None, typer.Option("--out", help="New folder for run, clients and report.")
    ] = None,
) -> None:
    """Run a server and its clients as real processes, each held to its device; takes root.

    Memory, speed and link are those of the profiles of fleet.devices; rehearsal.faults go wrong.

    Example: samara rehearse field.toml --dilation 12 --out runs/rehearsal
    """
    from rich.console import Console

    from samara.shared.config import load_scenario
    from samara.shared.scenarios import scenario_file
    from samara.simulations.progress import stoppable
    from samara.simulations.rehearsal.report import write_report
    from samara.simulations.rehearsal.run import rehearse as run
    from samara.simulations.rehearsal.table import report_table

    places = {"model.path": model, "data.path": data}
    given = [f"{key}={place}" for key, place in places.items() if place is not None]
    config = load_scenario(scenario_file(scenario), [*given, *(settings or [])])
    console = Console()

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    with stoppable("samara: stopped; nothing of the rehearsal is left running"):
        report, folder = run(config, dilation, out, say)
    file = write_report(report, folder)
    console.print(report_table(report))
    for fault in report.faults:
        say(fault.describe())
    say(f"the same as JSON: {file}")
    raise typer.Exit(0 if report.is_good else 1)
