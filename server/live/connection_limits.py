"""Limits of the connections to a SuperLink: how many, and how long one may go without a request."""

from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 8192
MAX_CONNECTIONS_OF_HOST = 2048
"""Most connections of one address, behind which many clients may be."""
HEAD_SECONDS = 15.0
"""Time in which a connection must begin a request; checked this often."""
MAX_HEAD_BYTES = 16_384
"""Most bytes of a request's first line and headers."""


class LimitedProtocol(H11Protocol):
    """The server's half of an HTTP connection, which ends idle, slow and surplus ones."""

    def connection_made(self, transport: Any) -> None:
        """Accept a connection, unless there are too many."""
        super().connection_made(transport)
        self._last_request: Any = None
        self._timer: Any = None
        host = self.client[0] if self.client else ""
        count_of_host = sum(1 for c in self.connections if c.client and c.client[0] == host)
        if len(self.connections) > MAX_CONNECTIONS or count_of_host > MAX_CONNECTIONS_OF_HOST:
            transport.abort()
            return
        self._timer = self.loop.call_later(HEAD_SECONDS, self._end_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release what belongs to a connection that has ended."""
        super().connection_lost(exc)
        if self._timer:
            self._timer.cancel()

    def _end_if_idle(self) -> None:
        """End the connection if no request has begun since the last check and none is answered."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not is_answering and self.cycle is self._last_request:
            self.transport.abort()
            return
        self._last_request = self.cycle
        self._timer = self.loop.call_later(HEAD_SECONDS, self._end_if_idle)
