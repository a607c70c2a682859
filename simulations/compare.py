"""Runs side by side: every client's accuracy on its own test examples."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from server.store import read_result
from shared.errors import SamaraError
from simulations.report import client_columns, clients_table


def compared(runs: Sequence[Path]) -> Table:
    """One table over the runs' clients; a column per run and way of serving a client.

    Raises:
        SamaraError: if a run is not finished, or its clients hold other test examples than the
            first run's.
    """
    columns: dict[str, Any] = {}
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
        prefix = f"{run.name}\n" if len(runs) > 1 else ""
        columns |= {prefix + name: figures for name, figures in own.items()}
    return clients_table(columns)
