"""A listening socket that limits connections from the moment they are accepted.

Those whose TLS handshake never ends count too; of a handshake neither uvicorn nor an application
hears before it is over.
"""

import socket
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Callable
from typing import Any

MAX_CONNECTIONS = 8192
MAX_CONNECTIONS_OF_HOST = 2048
"""Most connections of one address, behind which many clients may be."""
HANDSHAKE_SECONDS = 10.0
"""Time from a connection to the end of its TLS handshake."""
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


def tls_limits() -> dict[str, float]:
    """Return the options of asyncio's servers that give TLS little time; its memory is set too."""
    SSLProtocol.max_size = READ_BYTES
    return {"ssl_handshake_timeout": HANDSHAKE_SECONDS}
