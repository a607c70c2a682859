"""A server that starts the connections of each network one by one, at a limited rate.

To start a connection means to begin its TLS handshake and protocol. asyncio's servers do so as soon
as a connection is accepted. Here connections of the same network wait for each other, but not for
other networks.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from samara.shared.network.http.limited_listener import LimitedConnection, LimitedListener
from samara.shared.network.rate_limit import Pace

CONNECTIONS_PER_SECOND = 50.0
"""Largest number of connections that a network can start per second."""
CONNECTIONS_AT_ONCE = 128
"""Largest number of connections that a network can start at once after an idle time."""
_ACCEPTED_AT_ONCE = 64
_NO_DESCRIPTOR_SECONDS = 0.1
_BACKLOG = 1024


class PacedServer:
    """A server on the running event loop.

    Args:
        listener: listener that accepts the connections.
        protocol: function that returns the protocol of a connection.
        is_paced: whether connections wait for their turn; False behind a reverse proxy, whose
            address all clients share.
        options: asyncio's options for each connection, such as TLS.
    """

    def __init__(
        self,
        listener: LimitedListener,
        protocol: Callable[[LimitedConnection], asyncio.BaseProtocol],
        is_paced: bool = True,
        **options: Any,
    ) -> None:
        self._listener, self._protocol, self._options = listener, protocol, options
        self._pace = Pace(CONNECTIONS_PER_SECOND, CONNECTIONS_AT_ONCE) if is_paced else None
        self._waiting: dict[str, deque[LimitedConnection]] = {}
        # Tasks, each with the connections that the task has not started yet.
        self._tasks: dict[asyncio.Task[None], Iterable[LimitedConnection]] = {}
        self._loop = asyncio.get_running_loop()
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        self._listen()

    def close(self) -> None:
        """Stop accepting connections, and close the waiting ones."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for task, connections in self._tasks.items():
            task.cancel()
            for connection in connections:
                if not connection.is_served:
                    connection.close()

    def _listen(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no file descriptor is free
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_NO_DESCRIPTOR_SECONDS, self._listen)
                return
            connection.setblocking(False)
            connection.is_served = False
            if self._pace is None:
                self._start(self._serve(connection), [connection])
                continue
            if (queue := self._waiting.get(connection.network)) is None:
                queue = self._waiting[connection.network] = deque()
                self._start(self._take_turns(connection.network, self._pace), queue)
            queue.append(connection)

    def _start(self, work: Any, connections: Iterable[LimitedConnection]) -> None:
        task = self._loop.create_task(work)
        self._tasks[task] = connections
        task.add_done_callback(self._tasks.pop)

    async def _take_turns(self, network: str, pace: Pace) -> None:
        """Start the waiting connections of a network one after another, until none is left."""
        queue = self._waiting[network]
        while queue:
            if queue[0].fileno() < 0:  # the listener closed it to make room for another connection
                queue.popleft()
            elif seconds := pace.take(network):
                await asyncio.sleep(seconds)
                self._serve_next(queue)
            else:
                self._serve_next(queue)
        del self._waiting[network]

    def _serve_next(self, queue: deque[LimitedConnection]) -> None:
        while queue:
            connection = queue.popleft()
            if connection.fileno() >= 0:
                self._start(self._serve(connection), [connection])
                return

    async def _serve(self, connection: LimitedConnection) -> None:
        if connection.fileno() < 0:  # the listener closed it to make room
            return
        connection.is_served = True
        with suppress(OSError):  # an error of the peer or of its handshake
            await self._loop.connect_accepted_socket(
                lambda: self._protocol(connection), connection, **self._options
            )
