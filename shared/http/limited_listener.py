"""A listening socket that limits connections from the moment they are accepted.

Those whose TLS handshake never ends count too; of a handshake neither uvicorn nor an application
hears before it is over. Connections are counted by network. When the share of a network or the
whole is full, the oldest connection makes room, unless its other end has proved who it is: who
proves it at once is not kept out by who never does.
"""

import errno
import socket
import struct
from asyncio.sslproto import SSLProtocol
from contextlib import suppress
from typing import Any

from samara.shared.log_budget import LogBudget
from samara.shared.rate_limit import network_of

MAX_CONNECTIONS = 8192
MAX_CONNECTIONS_OF_NETWORK = 2048
"""Most connections of one network (/24 of IPv4, /48 of IPv6), behind which many clients may be."""
HANDSHAKE_SECONDS = 10.0
"""Time from a connection to the end of its TLS handshake."""
READ_BYTES = 2**16
"""Bytes that are read of a TLS connection at once. asyncio's own are 256 KiB, which it holds for
each connection, and as much again may wait for the app."""
_NETWORK_BITS = 24, 48
_NO_DESCRIPTOR = errno.EMFILE, errno.ENFILE
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a connection that was ended leaves nothing behind


class LimitedConnection(socket.socket):
    """An accepted connection.

    Attributes:
        listener: the listener that counts it.
        address: address of the other end.
        network: network that it counts for.
        is_served: whether something reads of it, and closes it at its end.
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
        """End the connection; who reads of it sees that, and closes it."""
        with suppress(OSError):
            self.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.shutdown(socket.SHUT_RDWR)
        if not self.is_served:
            self.close()


class LimitedListener(socket.socket):
    """A listening socket that holds so many connections at once, in all and of one network.

    Args:
        host: name or address to listen on; of several addresses one of IPv4, to which the
            server's own processes connect.
        port: port; 0 takes a free one.
        most: most connections without a proof; None takes `MAX_CONNECTIONS`, which is also the
            most with one.
        share: most of them of one network; None takes `MAX_CONNECTIONS_OF_NETWORK`.
        lines: budget of the log's lines about connections that make room; None says nothing.

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
        # Those without a proof, oldest first: all of them by address, and those of each network.
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
        """Accept a connection; the oldest one without a proof makes room if there are too many.

        Raises:
            ConnectionAbortedError: if there is no file descriptor; one makes room then too.
            OSError: if there is none and nothing that makes room, or no connection.
        """
        try:
            accepted, address = super().accept()
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR or not self._open:
                raise
            oldest = next(iter(self._open.values()))
            self._end(oldest, "made room: no file descriptor is left; raise `ulimit -n`")
            raise ConnectionAbortedError("no file descriptor is left") from error
        connection = LimitedConnection(fileno=accepted.detach())
        network = network_of(address[0], *_NETWORK_BITS)
        connection.listener, connection.address, connection.network = self, address[:2], network
        if len(self._networks.get(network, ())) >= self._share:
            oldest = next(iter(self._networks[network]))
            self._end(oldest, "made room: its network has its share of connections without a proof")
        elif len(self._open) >= self._most:
            oldest = next(iter(self._open.values()))
            self._end(oldest, "made room: there are as many connections without a proof as may be")
        self._open[connection.address] = connection
        self._networks.setdefault(network, {})[connection] = None
        return connection, address

    def keep(self, address: Any) -> None:
        """Count a connection no more, whose other end has proved who it is.

        Args:
            address: address of the other end, whose first parts are host and port.
        """
        connection = self._open.get(tuple(address[:2]))
        if connection is not None and len(self._kept) < MAX_CONNECTIONS:
            self.forget(connection)
            self._kept.add(connection)

    def forget(self, connection: LimitedConnection) -> None:
        """Count a connection no more."""
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
    """Return the options of asyncio's servers that give TLS little time; its memory is set too."""
    SSLProtocol.max_size = READ_BYTES
    return {"ssl_handshake_timeout": HANDSHAKE_SECONDS}
