"""The commands `samara privacy`."""

from typing import Annotated

import typer

app = typer.Typer(help="Plan differential privacy.", no_args_is_help=True)


@app.callback()
def privacy() -> None:
    """Plan differential privacy."""


@app.command()
def plan(
    rounds: Annotated[int, typer.Option(min=1, max=1_000_000, help="Rounds of the run.")] = 40,
    clients: Annotated[
        int, typer.Option(min=1, max=2**20, help="Clients that answer in a round.")
    ] = 64,
    scalars: Annotated[
        int, typer.Option(min=1, max=2**20, help="Scalars of a client in a round, steps × queries.")
    ] = 256,
    epsilon: Annotated[
        float | None, typer.Option(help="ε of the whole run; by default 8, 2 and 0.5.")
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise multiplier, in place of an ε.")
    ] = None,
    delta: Annotated[float, typer.Option(help="δ of the whole run.")] = 1e-5,
) -> None:
    """Show what ε costs: the noise that a run's rounds would need, before there is a run.

    Example: samara privacy plan --rounds 40 --clients 1000 --epsilon 2
    """
    from rich.console import Console

    from simulations.privacy_plan import plan_privacy, plan_table

    plans = plan_privacy(epsilon, noise_multiplier, delta, rounds, clients, scalars)
    console = Console()
    console.print(plan_table(plans))
    console.print(
        f"{rounds:,} rounds, {clients:,} clients in each, {scalars:,} scalars of each; "
        f"δ = {delta:g}. A client's scalars have a norm of at most one clip, so a mean has too: "
        "noise of more than that hides it. Every client is in every round here; no amplification "
        "by sampling is claimed.",
        highlight=False,
    )
