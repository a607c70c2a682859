"""Limits on the connections to a SuperLink: their number, and their time without a request."""

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from samara.shared.network.http.limited_listener import LimitedListener, tls_limits
from samara.shared.network.log_budget import LogBudget

HEAD_SECONDS = 15.0
"""Interval between two checks of a connection, in seconds.

A connection is closed if it neither began nor answered a request within one interval.
"""
MAX_HEAD_BYTES = 16_384
"""Maximum size of a request line and its headers, in bytes."""


class LimitedLoop(asyncio.SelectorEventLoop):
    """An event loop that serves through a `LimitedListener` and limits time and memory for TLS."""

    listener: ClassVar[LimitedListener | None] = None
    """Listener of the latest server."""
    lines: ClassVar[LogBudget | None] = None
    """Budget of log lines about connections closed to make room."""

    @classmethod
    def keep(cls, address: Any) -> None:
        """Protect an authenticated peer's connection from being closed to make room."""
        if cls.listener:
            cls.listener.keep(address)

    async def create_server(
        self,
        protocol_factory: Any,
        host: Any = None,
        port: Any = None,
        *,
        ssl: Any = None,
        **options: Any,
    ) -> asyncio.Server:
        """Serve on an address through a `LimitedListener`; see `asyncio.loop.create_server`."""
        if ssl:
            options |= tls_limits()
        listener = LimitedLoop.listener = LimitedListener(host, port, lines=LimitedLoop.lines)
        return await super().create_server(protocol_factory, sock=listener, ssl=ssl, **options)


class LimitedProtocol(H11Protocol):
    """Server side of an HTTP connection that closes idle and slow connections."""

    def connection_made(self, transport: Any) -> None:
        """Start watching a connection."""
        super().connection_made(transport)
        self._last_request: Any = None
        self._timer: Any = self.loop.call_later(HEAD_SECONDS, self._end_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the resources of a closed connection."""
        super().connection_lost(exc)
        self._timer.cancel()

    def shutdown(self) -> None:
        """End the connection with the server; do not wait for the peer of an idle connection."""
        super().shutdown()
        if self.transport.is_closing():
            self.transport.abort()

    def _end_if_idle(self) -> None:
        """Close the connection if no request has begun since the last check and none is running."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not is_answering and self.cycle is self._last_request:
            self.transport.abort()
            return
        self._last_request = self.cycle
        self._timer = self.loop.call_later(HEAD_SECONDS, self._end_if_idle)
