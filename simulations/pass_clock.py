"""A clock that also says how many rows went through the model for each client, and the counts.

A row is an example under one perturbation. Rows of evaluations are not counted, nor those of
backward passes. The first pass of a readout counts even if a cache from an earlier run had it.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from client.training.client_data import ClientData
from server.transport.clock import Clock


class PassClock:
    """A clock whose events and result also hold the rows of each client, by the key ``passes``.

    Args:
        clock: the clock that tells the time.
        take_rows: function that returns by client the rows since it was called before.
    """

    def __init__(self, clock: Clock, take_rows: Callable[[], Mapping[int, int]]) -> None:
        self._clock, self._take_rows = clock, take_rows

    def now(self) -> float:
        """Return the time of the clock."""
        return self._clock.now()

    def wait(self, max_seconds: float, waited: float = math.inf) -> None:
        """Wait as the clock does."""
        self._clock.wait(max_seconds, waited)

    def reachable(self, nodes: Iterable[int]) -> list[int]:
        """Return the nodes that can be reached by the clock."""
        return self._clock.reachable(nodes)

    def finish_round(self) -> dict[str, Any]:
        """Return the clock's fields and the rows of each client since the round before."""
        rows = {str(client): count for client, count in self._take_rows().items()}
        return self._clock.finish_round() | {"passes": rows}

    def finish_run(self, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the clock's fields and the rows in all rounds and in the private ones since."""
        total = Counter(self._take_rows())
        for event in rounds:
            for client, rows in event.get("passes", {}).items():
                total[int(client)] += rows
        passes = {str(client): total[client] for client in sorted(total)}
        return self._clock.finish_run(rounds) | {"passes": passes}


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


class PassesInFolder:
    """The rows of clients in several processes, each of which appends to a file of its own.

    Args:
        folder: empty folder of the files; on this machine, like the processes.
        clients: number of clients.
    """

    def __init__(self, folder: Path, clients: int) -> None:
        self._folder, self._returned = folder, Counter(dict.fromkeys(range(clients), 0))

    def add(self, data: ClientData) -> None:
        """Write the rows of a client in this process that were not written yet."""
        if rows := data.take_passes():
            with (self._folder / str(os.getpid())).open("a", encoding="ascii") as file:
                file.write(f"{data.client} {rows}\n")

    def take_rows(self) -> dict[int, int]:
        """Return by client the rows that were not returned yet."""
        total = Counter(dict.fromkeys(self._returned, 0))
        for file in self._folder.iterdir():
            for line in file.read_text(encoding="ascii").splitlines():
                client, rows = line.split()
                total[int(client)] += int(rows)
        new = {client: rows - self._returned[client] for client, rows in total.items()}
        self._returned = total
        return new
