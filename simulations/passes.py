"""Counts of the rows that went through the model for each client.

A row is an example under one perturbation. Rows of evaluations are not counted, nor those of
backward passes. The first pass of a readout counts even if a cache from an earlier run had it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from flwr.app import Message, MetricRecord
from flwr.serverapp import Grid

from samara.client.training.client_data import ClientData
from samara.server.transport.delegating_grid import DelegatingGrid

_PASSES = "passes"


class PassMeter:
    """A meter of the rows of each client, by the key ``passes`` of events and of the result.

    Args:
        take_rows: function that returns by client the rows since it was called before.
    """

    def __init__(self, take_rows: Callable[[], Mapping[int, int]]) -> None:
        self._take_rows = take_rows

    def finish_round(self) -> dict[str, Any]:
        """Return the rows of each client since the round before."""
        return {"passes": {str(client): count for client, count in self._take_rows().items()}}

    def finish_run(self, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the rows in all rounds and in the private ones since."""
        total = Counter(self._take_rows())
        for event in rounds:
            for client, rows in event.get("passes", {}).items():
                total[int(client)] += rows
        return {"passes": {str(client): total[client] for client in sorted(total)}}


class PassesInProcess:
    """The rows of clients whose data are in this process, from now on.

    Args:
        clients: data of all clients, in the order of their indices.
    """

    def __init__(self, clients: Sequence[ClientData]) -> None:
        self._clients = clients
        for data in clients:
            data.passes, data.has_passed = 0, False

    def take_rows(self) -> dict[int, int]:
        """Return by client the rows that were not returned yet."""
        return {client: data.take_passes() for client, data in enumerate(self._clients)}


class PassesInReplies(DelegatingGrid):
    """The rows of clients in other processes, which they put beside the frames of their replies.

    Args:
        grid: delivers the messages.
        clients: number of clients.
    """

    def __init__(self, grid: Grid, clients: int) -> None:
        super().__init__(grid)
        self._rows = dict.fromkeys(range(clients), 0)

    @staticmethod
    def add(reply: Message, data: ClientData) -> None:
        """Put the rows of a client that were not sent yet into its reply."""
        reply.content.metric_records[_PASSES] = MetricRecord(
            {"client": data.client, "rows": data.take_passes()}
        )

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that have arrived, each once."""
        replies = list(self._grid.pull_messages(message_ids))
        for reply in replies:
            if not reply.has_error() and _PASSES in reply.content.metric_records:
                row = reply.content.metric_records.pop(_PASSES)
                self._rows[cast(int, row["client"])] += cast(int, row["rows"])
        return replies

    def take_rows(self) -> dict[int, int]:
        """Return by client the rows that were not returned yet."""
        taken, self._rows = self._rows, dict.fromkeys(self._rows, 0)
        return taken
