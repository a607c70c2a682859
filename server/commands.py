"""The commands that look at runs."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Look into runs.", no_args_is_help=True)
Run = Annotated[Path, typer.Argument(help="Folder of a run.")]


@app.command()
def inspect(run: Run) -> None:
    """Show the rounds of a run: who contributed what.

    Example: samara server inspect runs/first
    """
    from rich.console import Console
    from rich.table import Table

    from server.store import LEDGER_FILE, read_layout
    from shared.ledger import read_header, read_records

    layout = read_layout(run)
    header = read_header(run / LEDGER_FILE)
    table = Table(title=f"Run {header.run_id.hex()}, d = {layout.size:,}, track {header.track}")
    for column in ("round", "devices", "examples", "scalars", "shift", "bytes", "end digest"):
        table.add_column(column, justify="right")
    for record in read_records(run / LEDGER_FILE):
        delta = record.delta
        table.add_row(
            str(delta.round),
            str(len(delta.contributors)),
            str(sum(contributor.examples for contributor in delta.contributors)),
            str(sum(len(group.scalars.coefficients) for group in delta.groups)),
            ",".join(str(s) for s in sorted({group.scalars.shift for group in delta.groups})),
            f"{record.size:,}",
            record.end_digest.hex()[:16],
        )
    Console().print(table)


@app.command()
def verify(run: Run) -> None:
    """Replay a run from nothing and prove every digest.

    Example: samara server verify runs/first
    """
    from rich.console import Console

    from server.store import RESULT_FILE, read_layout, read_result, replayed
    from shared.errors import LedgerError
    from shared.replay import digest, zero_state

    layout = read_layout(run)
    rounds, scalars = 0, 0
    end = digest(layout.hash, zero_state(layout.size)).hex()
    for record, _ in replayed(run):
        rounds = record.delta.round
        scalars += sum(len(group.scalars.coefficients) for group in record.delta.groups)
        end = record.end_digest.hex()
    if (run / RESULT_FILE).exists():
        result = read_result(run)
        said = result.get("final_round"), result.get("final_digest")
        if said != (rounds, end):
            raise LedgerError(
                f"{run / RESULT_FILE}: says round {said[0]} with digest {str(said[1])[:16]}, the "
                f"ledger ends at round {rounds} with {end[:16]}; rounds are missing or foreign"
            )
    Console().print(f"{rounds} rounds, {scalars} scalars, every digest reproduced; ends in {end}")
