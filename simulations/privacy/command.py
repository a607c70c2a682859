"""The command `samara privacy`, which shows the cost of differential privacy before a run."""

from pathlib import Path
from typing import Annotated, Any

import typer


def privacy(
    scenario: Annotated[
        Path | None,
        typer.Argument(help="Scenario to plan: name of a shipped scenario, or file."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Rounds of the run; 40 by default.")
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(min=1, max=2**20, help="Clients that answer in a round; 64 by default."),
    ] = None,
    scalars: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2**20,
            help="Scalars per client and round, steps × queries; 256 by default.",
        ),
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="central, local or distributed; central by default.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="ε of the whole run; by default compare 8, 2 and 0.5.")
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise multiplier, in place of --epsilon.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="δ of the whole run; 1e-5 by default.")
    ] = None,
    honest_share: Annotated[
        float | None,
        typer.Option(help="Share of a round's clients that are honest; for mode distributed."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: key=value. Repeatable.")
    ] = None,
) -> None:
    """Show the noise that a run needs for an ε, before the run starts.

    Example: samara privacy --rounds 40 --clients 1000 --epsilon 2
    """
    from dataclasses import replace

    from rich.console import Console

    from samara.shared.errors import ConfigError
    from samara.shared.settings.scenarios import scenario_file
    from samara.simulations.privacy.plan import (
        PlannedRun,
        describe_plan,
        plan_of_scenario,
        plan_table,
        warn_of_plan,
    )

    if scenario is None:
        if settings:
            raise ConfigError("--set: overrides settings of a scenario; name the scenario")
        run = PlannedRun(40, 64, 256, minimum=clients or 64)
    else:
        run = plan_of_scenario(scenario_file(scenario), settings or ())
    given: dict[str, Any] = {
        "rounds": rounds,
        "clients": clients,
        "scalars": scalars,
        "mode": mode,
        "delta": delta,
        "honest_share": honest_share,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if epsilon is not None or noise_multiplier is not None:
        changes |= {"epsilon": epsilon, "noise_multiplier": noise_multiplier}
    run = replace(run, **changes)
    console = Console()
    console.print(plan_table(run))
    console.print(describe_plan(run), highlight=False)
    if warning := warn_of_plan(run):
        console.print(f"[yellow]{warning}[/yellow]", highlight=False)
