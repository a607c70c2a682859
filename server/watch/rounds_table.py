"""Tables of a run's rounds and of its ledger files."""

from contextlib import suppress
from pathlib import Path

from rich.table import Table

from samara.server.store import ledger_of, read_layout
from samara.shared.protocol.ledger.reading import (
    read_header,
    read_ledger,
    segment_paths,
    snapshot_paths,
)


def make_rounds_tables(run: Path) -> tuple[Table, Table]:
    """Return a table with a row for each round, and a table with a row for each ledger file.

    Args:
        run: folder of a run, which may be served at the same time.

    Raises:
        SamaraError: if there is no ledger, if each cluster has its own ledger, or if the ledger is
            damaged.
    """
    layout = read_layout(run)
    ledger = ledger_of(run)
    header = read_header(ledger)
    rounds = Table(
        title=f"Run {header.run_id.hex()}, {layout.size:,} trained numbers, track {header.track}"
    )
    for column in ("round", "clients", "examples", "scalars", "bytes", "end digest"):
        rounds.add_column(column, justify="right")
    for record in read_ledger(ledger):
        delta = record.delta
        rounds.add_row(
            str(delta.round),
            str(len(delta.contributors)),
            str(sum(contributor.examples for contributor in delta.contributors)),
            str(sum(len(group.scalars.coefficients) for group in delta.groups)),
            f"{record.size:,}",
            record.end_digest.hex()[:16],
        )
    files = Table("file", "holds", "bytes", title=str(ledger))
    contents = [
        (path, f"the rounds from round {n} on") for n, path in segment_paths(ledger).items()
    ]
    contents += [(path, f"the state after round {n}") for n, path in snapshot_paths(ledger).items()]
    for path, content in sorted(contents):
        with suppress(FileNotFoundError):  # compaction may have deleted the file in the meantime
            files.add_row(path.name, content, f"{path.stat().st_size:,}")
    return rounds, files
