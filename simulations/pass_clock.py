"""The system's clock of a simulation that also counts the clients' passes through the model."""

from collections.abc import Mapping, Sequence
from typing import Any

from client.training.client_data import ClientData
from server.transport.clock import SystemClock


class PassClock(SystemClock):
    """A clock whose events and result say how many rows went through the model for each client.

    A row is an example under one perturbation. Rows of evaluations are not counted, nor those of
    backward passes. The first pass of a readout counts even if a cache from an earlier run had it.

    Args:
        clients: data of all clients, which count the rows from now on.
    """

    def __init__(self, clients: Sequence[ClientData]) -> None:
        self._clients = clients
        for data in clients:
            data.passes, data.has_passed = 0, False

    def finish_round(self) -> dict[str, Any]:
        """Return the rows of each client since the round before, by the key ``passes``."""
        return {"passes": {str(client): rows for client, rows in self._take().items()}}

    def finish_run(self, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the rows of each client in all rounds and in the private ones since."""
        total = self._take()
        for event in rounds:
            for client, rows in event.get("passes", {}).items():
                total[int(client)] += rows
        return {"passes": {str(client): rows for client, rows in total.items()}}

    def _take(self) -> dict[int, int]:
        """Return the rows of each client that were not returned yet."""
        new = {}
        for client, data in enumerate(self._clients):
            new[client], data.passes = data.passes, 0
        return new
