"""Limits of the connections to a SuperLink: how many, and how long one may go without a request."""

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from samara.shared.http.limited_listener import LimitedListener, tls_limits
from samara.shared.log_budget import LogBudget

HEAD_SECONDS = 15.0
"""Time in which a connection must begin a request; checked this often."""
MAX_HEAD_BYTES = 16_384
"""Most bytes of a request's first line and headers."""


class LimitedLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers have a `LimitedListener`, and little time and memory for TLS."""

    listener: ClassVar[LimitedListener | None] = None
    """The listener of the last server."""
    lines: ClassVar[LogBudget | None] = None
    """Budget of the log's lines about connections that make room."""

    @classmethod
    def keep(cls, address: Any) -> None:
        """Let a connection make no room for others: who is at its other end has proved it."""
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
        """Serve on an address as `asyncio` does."""
        if ssl:
            options |= tls_limits()
        listener = LimitedLoop.listener = LimitedListener(host, port, lines=LimitedLoop.lines)
        return await super().create_server(protocol_factory, sock=listener, ssl=ssl, **options)


class LimitedProtocol(H11Protocol):
    """The server's half of an HTTP connection, which ends idle and slow ones."""

    def connection_made(self, transport: Any) -> None:
        """Begin to watch a connection."""
        super().connection_made(transport)
        self._last_request: Any = None
        self._timer: Any = self.loop.call_later(HEAD_SECONDS, self._end_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release what belongs to a connection that has ended."""
        super().connection_lost(exc)
        self._timer.cancel()

    def _end_if_idle(self) -> None:
        """End the connection if no request has begun since the last check and none is answered."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not is_answering and self.cycle is self._last_request:
            self.transport.abort()
            return
        self._last_request = self.cycle
        self._timer = self.loop.call_later(HEAD_SECONDS, self._end_if_idle)
