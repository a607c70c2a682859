"""Runs side by side: every client's accuracy on its own test examples."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from server.store import read_result
from shared.errors import SamaraError
from simulations.report import client_columns, clients_table, means_table


def compared(runs: Sequence[Path]) -> list[Table]:
    """A table per run with its clients, then their means, run by run.

    Raises:
        SamaraError: if a run is not finished, or its clients hold other test examples than the
            first run's.
    """
    tables: list[Table] = []
    lines: dict[str, Mapping[str, Any]] = {}
    first: Mapping[str, int] | None = None
    for run in runs:
        result = read_result(run)
        try:
            own = client_columns(result["evaluations"])
            examples = {
                client: figures["examples"]
                for column in own.values()
                for client, figures in column["clients"].items()
            }
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise SamaraError(f"{run}: its result.json is damaged: {error!r}") from error
        if first is not None and examples != first:
            raise SamaraError(
                f"{run}: its clients hold other test examples than those of {runs[0]}; compare "
                "runs with the same data, data.clients, data.partition and data.seed"
            )
        first = examples
        tables.append(clients_table(own, str(run)))
        lines[str(run)] = own
    return [*tables, means_table(lines)] if len(runs) > 1 else tables
