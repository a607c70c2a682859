"""The commands that measure."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Measure this machine.", no_args_is_help=True)


@app.callback()
def _bench() -> None:
    """Keep ``replay`` a command of its own."""


@app.command()
def replay(
    adapters: Annotated[
        list[str] | None, typer.Option("--adapter", help="Which adapter's tensors. Repeatable.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds folded at once.")] = 32,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0 is one per core.")] = 0,
    repetitions: Annotated[int, typer.Option(min=1, help="Of everything, in turn.")] = 5,
    json: Annotated[
        Path | None, typer.Option("--json", help="Write the rows to this file.")
    ] = None,
) -> None:
    """Replay and directions per backend, against the loop that peers use.

    Example: samara bench replay --adapter tinyllama --json replay.json
    """
    from rich.console import Console

    from benchmarks.replay import measured, table
    from shared.files import write_durably

    rows = measured(adapters or ["minilm-top2", "tinyllama"], seeds, threads, repetitions)
    Console().print(table(rows))
    if json:
        from json import dumps

        write_durably(json, (dumps(rows, indent=1) + "\n").encode())
        print(f"rows in {json}")
