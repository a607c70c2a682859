"""A server that begins with the connections of each network in turn, in a pace of its own.

asyncio's servers begin with a connection as soon as it is accepted, and so with the work of its TLS
handshake. Here the connections of a network wait for one another, and those of others do not.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from samara.shared.http.limited_listener import LimitedConnection, LimitedListener
from samara.shared.rate_limit import Pace

CONNECTIONS_PER_SECOND = 50.0
"""Connections of a network that are begun with in a second."""
CONNECTIONS_AT_ONCE = 128
"""Connections of a network that are begun with at once after a time without any."""
_ACCEPTED_AT_ONCE = 64
_NO_DESCRIPTOR_SECONDS = 0.1
_BACKLOG = 1024


class PacedServer:
    """A server on the running event loop.

    Args:
        listener: listener whose connections are served.
        protocol: function that returns the protocol of a connection.
        is_paced: whether connections wait for their turn; those of a reverse proxy do not, as it
            is one network that stands for many.
        options: options of asyncio for each connection, such as those of TLS.
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
        # The tasks, each with the connections that it has not begun with yet.
        self._tasks: dict[asyncio.Task[None], Iterable[LimitedConnection]] = {}
        self._loop = asyncio.get_running_loop()
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        self._listen()

    def close(self) -> None:
        """Accept no more connections, and end those that are waiting."""
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
            except OSError:  # no file descriptor is left
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
        """Begin with the connections of a network one after another, until there are none."""
        queue = self._waiting[network]
        while queue:
            if queue[0].fileno() < 0:  # it has made room for another one
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
        if connection.fileno() < 0:  # it has made room
            return
        connection.is_served = True
        with suppress(OSError):  # of the other end, or of its handshake
            await self._loop.connect_accepted_socket(
                lambda: self._protocol(connection), connection, **self._options
            )
