"""Counters of the rows that went through the model, by client.

A row is an example under one perturbation. Rows of evaluations and of backward passes do not count.
The first pass of a readout counts even if an earlier run has stored its output. A resumed run whose
clients are in this process does not count it again.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from flwr.app import Message, MetricRecord
from flwr.serverapp import Grid

from samara.client.training.client_data import ClientData
from samara.server.transport.delegating_grid import DelegatingGrid
from samara.shared.storage.events import read_events

_PASSES = "passes"


class PassMeter:
    """A meter that adds each client's rows to events and result, under the key ``passes``.

    Args:
        take_rows: function that returns each client's rows since its previous call.
    """

    def __init__(self, take_rows: Callable[[], Mapping[int, int]]) -> None:
        self._take_rows = take_rows

    def finish_round(self) -> dict[str, Any]:
        """Return each client's rows since the previous round."""
        return {"passes": {str(client): count for client, count in self._take_rows().items()}}

    def finish_run(self, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return each client's rows in all rounds and in later private rounds."""
        total = Counter(self._take_rows())
        for event in rounds:
            for client, rows in event.get("passes", {}).items():
                total[int(client)] += rows
        return {"passes": {str(client): total[client] for client in sorted(total)}}


class PassesInProcess:
    """A counter of the rows of clients in this process.

    Counting starts when the counter is created.

    Args:
        clients: data of all clients, in the order of their indices.
        events: file with the events of the run so far, if any.
    """

    def __init__(self, clients: Sequence[ClientData], events: Path) -> None:
        self._clients = clients
        counted = Counter[str]()
        for event in read_events(events):
            counted.update(event.get(_PASSES, {}))
        for client, data in enumerate(clients):
            data.passes = 0
            data.has_passed = counted[str(client)] > 0

    def take_rows(self) -> dict[int, int]:
        """Return each client's number of rows since the previous call."""
        return {client: data.take_passes() for client, data in enumerate(self._clients)}


class PassesInReplies(DelegatingGrid):
    """A counter of the rows of clients in other processes, from their replies.

    Args:
        grid: grid that delivers the messages.
        clients: number of clients.
    """

    def __init__(self, grid: Grid, clients: int) -> None:
        super().__init__(grid)
        self._rows = dict.fromkeys(range(clients), 0)

    @staticmethod
    def add(reply: Message, data: ClientData) -> None:
        """Add a client's unsent row count to its reply."""
        reply.content.metric_records[_PASSES] = MetricRecord(
            {"client": data.client, "rows": data.take_passes()}
        )

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that have arrived; each reply is returned once."""
        replies = list(self._grid.pull_messages(message_ids))
        for reply in replies:
            if not reply.has_error() and _PASSES in reply.content.metric_records:
                row = reply.content.metric_records.pop(_PASSES)
                self._rows[cast(int, row["client"])] += cast(int, row["rows"])
        return replies

    def take_rows(self) -> dict[int, int]:
        """Return each client's number of rows since the previous call."""
        taken = self._rows
        self._rows = dict.fromkeys(self._rows, 0)
        return taken
