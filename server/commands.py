"""The commands that look at runs."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Look into runs.", no_args_is_help=True)
Run = Annotated[Path, typer.Argument(help="Folder of a run.")]


@app.command()
def inspect(run: Run) -> None:
    """Show the rounds of a run, also while it is running, and the files that hold them.

    Example: samara server inspect runs/first
    """
    from rich.console import Console
    from rich.table import Table

    from server.store import LEDGER_FOLDER, read_layout
    from shared.ledger.reading import read_header, read_ledger, segment_paths, snapshot_paths

    layout, ledger = read_layout(run), run / LEDGER_FOLDER
    header = read_header(ledger)
    rounds = Table(title=f"Run {header.run_id.hex()}, d = {layout.size:,}, track {header.track}")
    for column in ("round", "devices", "examples", "scalars", "shift", "bytes", "end digest"):
        rounds.add_column(column, justify="right")
    for record in read_ledger(ledger):
        delta = record.delta
        rounds.add_row(
            str(delta.round),
            str(len(delta.contributors)),
            str(sum(contributor.examples for contributor in delta.contributors)),
            str(sum(len(group.scalars.coefficients) for group in delta.groups)),
            ",".join(str(s) for s in sorted({group.scalars.shift for group in delta.groups})),
            f"{record.size:,}",
            record.end_digest.hex()[:16],
        )
    files = Table("file", "holds", "bytes", title=str(ledger))
    held = [(path, f"the rounds from {n} on") for n, path in segment_paths(ledger).items()]
    held += [(path, f"the state after round {n}") for n, path in snapshot_paths(ledger).items()]
    for path, what in sorted(held):
        with suppress(FileNotFoundError):  # compacted away in the meantime
            files.add_row(path.name, what, f"{path.stat().st_size:,}")
    Console().print(rounds, files)


@app.command()
def verify(run: Run) -> None:
    """Replay a run from as far back as its ledger goes and prove every digest and snapshot.

    Example: samara server verify runs/first
    """
    from rich.console import Console

    from server.store import read_layout, read_result, replayed
    from shared.errors import LedgerError
    from shared.replay import digest
    from shared.result import RESULT_FILE

    layout = read_layout(run)
    steps = replayed(run)
    begin = step = next(steps)
    scalars = 0
    for step in steps:
        groups = step.record.delta.groups if step.record else ()
        scalars += sum(len(group.scalars.coefficients) for group in groups)
    end = digest(layout.hash, step.state).hex()
    if (run / RESULT_FILE).exists():
        result = read_result(run)
        said = result.get("final_round"), result.get("final_digest")
        if said != (step.round, end):
            raise LedgerError(
                f"{run / RESULT_FILE}: says round {said[0]} with digest {str(said[1])[:16]}, the "
                f"ledger ends at round {step.round} with {end[:16]}; rounds are missing or foreign"
            )
    before = f"rounds 1 to {begin.round} are in a snapshot; " if begin.round else ""
    Console().print(
        f"{before}{step.round - begin.round} rounds, {scalars} scalars, every digest reproduced; "
        f"ends in {end}"
    )
