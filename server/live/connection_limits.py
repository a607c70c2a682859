"""Limits of the connections to a SuperLink: how many, and how long one may go without a request.

Connections are counted from the moment they are accepted, so that those whose TLS handshake never
ends count too. Of a handshake neither Flower nor uvicorn hears before it is over.
"""

import asyncio
import socket
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 8192
MAX_CONNECTIONS_OF_HOST = 2048
"""Most connections of one address, behind which many clients may be."""
HANDSHAKE_SECONDS = 10.0
"""Time from a connection to the end of its TLS handshake."""
HEAD_SECONDS = 15.0
"""Time in which a connection must begin a request; checked this often."""
MAX_HEAD_BYTES = 16_384
"""Most bytes of a request's first line and headers."""
READ_BYTES = 2**16
"""Bytes that are read of a TLS connection at once. asyncio's own are 256 KiB, which it holds for
each connection, and as much again may wait for the app."""


class _CountedConnection(socket.socket):
    """A connection that tells when it is closed."""

    on_close: Callable[[], None] | None = None

    def close(self) -> None:
        """Close the connection."""
        super().close()
        on_close, self.on_close = self.on_close, None
        if on_close:
            on_close()


class LimitedListener(socket.socket):
    """A listening socket that accepts so many connections at once, in all and of one address."""

    def __init__(self, host: str, port: int) -> None:
        """Bind the address.

        Args:
            host: name or address to listen on; of several addresses one of IPv4, to which the
                server's own processes connect.
            port: port; 0 takes a free one.

        Raises:
            OSError: if the address cannot be used.
        """
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        address = min(addresses, key=lambda address: address[0] != socket.AF_INET)
        super().__init__(address[0], socket.SOCK_STREAM)
        self._open: Counter[str] = Counter()  # connections by address
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(address[4])
        except OSError:
            self.close()
            raise

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection.

        Raises:
            ConnectionAbortedError: if there are too many; it was closed.
        """
        accepted, address = super().accept()
        connection, host = _CountedConnection(fileno=accepted.detach()), address[0]
        if self._open.total() >= MAX_CONNECTIONS or self._open[host] >= MAX_CONNECTIONS_OF_HOST:
            connection.close()
            raise ConnectionAbortedError(f"too many connections, or too many of {host}")
        self._open[host] += 1
        connection.on_close = lambda: self._remove(host)
        return connection, address

    def _remove(self, host: str) -> None:
        self._open[host] -= 1
        if not self._open[host]:
            del self._open[host]


class LimitedLoop(asyncio.SelectorEventLoop):
    """An event loop whose servers have a `LimitedListener`, and little time and memory for TLS."""

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
            options["ssl_handshake_timeout"] = HANDSHAKE_SECONDS
            SSLProtocol.max_size = READ_BYTES
        listener = LimitedListener(host, port)
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
