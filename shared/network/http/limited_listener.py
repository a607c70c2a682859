"""A listening socket that limits connections from the moment they are accepted.

The socket also counts connections whose TLS handshake never ends, which uvicorn and applications do
not see. There is a limit for each network, and a limit for all connections. At a limit the oldest
unauthenticated connection is closed. So peers that never authenticate cannot lock out peers that
authenticate quickly.
"""

import errno
import socket
import struct
from asyncio.sslproto import SSLProtocol
from contextlib import suppress
from typing import Any

from samara.shared.network.log_budget import LogBudget
from samara.shared.network.rate_limit import network_of

MAX_CONNECTIONS = 8192
MAX_CONNECTIONS_OF_NETWORK = 2048
"""Largest number of connections of one network (/24 of IPv4, /48 of IPv6). Many clients can share a
network."""
HANDSHAKE_SECONDS = 10.0
"""Seconds within which a new connection must finish its TLS handshake."""
READ_BYTES = 2**16
"""Size in bytes of a read from a TLS connection.

asyncio's default is 256 KiB. Each connection holds a buffer of this size, and the same amount may
wait for the application.
"""
_NETWORK_BITS = 24, 48
_NO_DESCRIPTOR = errno.EMFILE, errno.ENFILE
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a closed connection leaves no state behind


class LimitedConnection(socket.socket):
    """An accepted connection.

    Attributes:
        listener: listener that counts the connection.
        address: address of the peer.
        network: network of the peer, under which the connection is counted.
        is_served: whether a protocol reads the connection, and closes it when reading ends.
    """

    listener: "LimitedListener"
    address: Any
    network: str
    is_served = True

    def close(self) -> None:
        """Close the connection."""
        super().close()
        self.listener.forget(self)

    def end(self) -> None:
        """Shut the connection down. Its protocol then reads an end of file and closes it."""
        with suppress(OSError):
            self.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.shutdown(socket.SHUT_RDWR)
        if not self.is_served:
            self.close()


class LimitedListener(socket.socket):
    """A listening socket that limits simultaneous connections, in total and per network.

    Args:
        host: name or address to listen on. If it has several addresses, an IPv4 address is used, to
            which the server's own processes connect.
        port: port; 0 selects a free port.
        most: largest number of unauthenticated connections; None for `MAX_CONNECTIONS`, the limit
            of authenticated connections.
        share: largest number of unauthenticated connections of one network; None for
            `MAX_CONNECTIONS_OF_NETWORK`.
        lines: budget of log lines about closed connections; None logs nothing.

    Raises:
        OSError: if the address cannot be used.
    """

    def __init__(
        self,
        host: str,
        port: int,
        most: int | None = None,
        share: int | None = None,
        lines: LogBudget | None = None,
    ) -> None:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        address = min(addresses, key=lambda address: address[0] != socket.AF_INET)
        super().__init__(address[0], socket.SOCK_STREAM)
        self._most = MAX_CONNECTIONS if most is None else most
        self._share = MAX_CONNECTIONS_OF_NETWORK if share is None else share
        self._lines = lines
        # Unauthenticated connections, oldest first: `_open` by address, `_networks` by network.
        self._open: dict[Any, LimitedConnection] = {}
        self._networks: dict[str, dict[LimitedConnection, None]] = {}
        self._kept = set[LimitedConnection]()
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(address[4])
        except OSError:
            self.close()
            raise

    def accept(self) -> tuple[LimitedConnection, Any]:
        """Accept a connection. Above a limit, close the oldest unauthenticated connection.

        Raises:
            ConnectionAbortedError: if no file descriptor was free. The oldest unauthenticated
                connection has been closed, so that a later call can succeed.
            OSError: if no file descriptor is free and no connection can be closed, or if there is
                no connection to accept.
        """
        try:
            accepted, address = super().accept()
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR or not self._open:
                raise
            oldest = next(iter(self._open.values()))
            self._end(oldest, "was closed: no file descriptor is left; raise `ulimit -n`")
            raise ConnectionAbortedError("no file descriptor is left") from error
        connection = LimitedConnection(fileno=accepted.detach())
        network = network_of(address[0], *_NETWORK_BITS)
        connection.listener, connection.address, connection.network = self, address[:2], network
        if len(self._networks.get(network, ())) >= self._share:
            oldest = next(iter(self._networks[network]))
            self._end(oldest, "was closed: the network has too many unauthenticated connections")
        elif len(self._open) >= self._most:
            oldest = next(iter(self._open.values()))
            self._end(oldest, "was closed: the server has too many unauthenticated connections")
        self._open[connection.address] = connection
        self._networks.setdefault(network, {})[connection] = None
        return connection, address

    def keep(self, address: Any) -> None:
        """Stop counting a connection whose peer has authenticated itself.

        Args:
            address: address of the peer; its first parts are host and port.
        """
        connection = self._open.get(tuple(address[:2]))
        if connection is not None and len(self._kept) < MAX_CONNECTIONS:
            self.forget(connection)
            self._kept.add(connection)

    def forget(self, connection: LimitedConnection) -> None:
        """Stop counting a connection."""
        self._kept.discard(connection)
        if self._open.get(connection.address) is not connection:
            return
        del self._open[connection.address]
        others = self._networks[connection.network]
        del others[connection]
        if not others:
            del self._networks[connection.network]

    def _end(self, connection: LimitedConnection, reason: str) -> None:
        if self._lines:
            self._lines.warn(f"the oldest connection of {connection.network}", reason)
        self.forget(connection)
        connection.end()


def tls_limits() -> dict[str, float]:
    """Limit the memory of TLS connections, and return asyncio's options that limit handshakes."""
    SSLProtocol.max_size = READ_BYTES
    return {"ssl_handshake_timeout": HANDSHAKE_SECONDS}
