"""Connections of phones, passed on to gRPC byte by byte.

gRPC accepts any connection, and reports a connection only once a stream is opened on it. This
module counts, limits and ends connections that have no stream yet, whatever bytes they send.
Browsers' connections have the same limits.
"""

import asyncio

from samara.shared.network.http.limited_listener import LimitedConnection, LimitedListener
from samara.shared.network.http.paced_server import PacedServer

MAX_UNPROVEN = 1024
"""Maximum number of connections that have not proved a key."""
MAX_UNPROVEN_OF_NETWORK = 256
"""Maximum number of unproven connections from one network, which many phones may share."""
MAX_UNPROVEN_STREAMS = 4
"""Maximum number of streams on a connection without a proof of a key; a phone opens one."""
_LAST_BYTES_SECONDS = 10.0
"""Seconds for the other end to receive the last bytes of a connection that gRPC has ended."""
_LAST_SECOND = 1.0
"""Seconds for the other end to receive the last bytes when the gateway shuts down."""


class _Half(asyncio.Protocol):
    """One half of a connection, which passes its bytes on to the other half."""

    transport: asyncio.Transport
    other: "_Half"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        self.other.transport.resume_reading()


class PassedConnection(_Half):
    """The phone's half of a connection.

    Args:
        connection: accepted connection.
        connections: all connections.

    Attributes:
        host: address of the other end.
        ended: future that is done once the connection is lost.
    """

    def __init__(self, connection: LimitedConnection, connections: "PassedConnections") -> None:
        self.host: str = connection.address[0]
        self._connection = connection
        self._connections = connections
        self._streams = 0
        self._is_proven = False
        self.other = self._grpc = _GrpcHalf(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect to gRPC; nothing is read from the phone before that connection exists."""
        super().connection_made(transport)
        self.ended = asyncio.get_running_loop().create_future()
        self._connections.open.add(self)
        # Python 3.11.2 starts to read after this method, even if the transport is paused in it
        asyncio.get_running_loop().call_soon(self.transport.pause_reading)
        self._connecting = asyncio.ensure_future(self._connect())

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection to gRPC."""
        self._connecting.cancel()
        if self._grpc.is_connected:
            self._grpc.transport.abort()
        self._connections.open.remove(self)
        self.ended.set_result(None)

    def open_stream(self) -> bool:
        """Return whether another stream may be opened; if not, end the connection."""
        self._streams += 1
        if self._is_proven or self._streams <= MAX_UNPROVEN_STREAMS:
            return True
        self.transport.abort()
        return False

    def keep(self) -> None:
        """Keep the connection while it has streams.

        The caller has checked that the other end holds its key.
        """
        self._is_proven = True
        self._connection.listener.keep(self._connection.address)

    def lose_grpc(self, port: int) -> None:
        """End the connection after the other end has received everything that gRPC sent."""
        self._connections.by_port.pop(port, None)
        self.transport.close()
        asyncio.get_running_loop().call_later(_LAST_BYTES_SECONDS, self.transport.abort)

    async def _connect(self) -> None:
        address = "127.0.0.1", self._connections.port_of_grpc
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self._grpc, *address)
        except OSError:
            self.transport.abort()
            return
        self._connections.by_port[self._grpc.port] = self
        self.transport.resume_reading()


class _GrpcHalf(_Half):
    """The half of a passed-on connection that leads to the gRPC server."""

    is_connected = False
    port = 0

    def __init__(self, phone: PassedConnection) -> None:
        self.other = self._phone = phone

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.is_connected, self.port = True, self.transport.get_extra_info("sockname")[1]

    def connection_lost(self, exc: Exception | None) -> None:
        self._phone.lose_grpc(self.port)


class PassedConnections:
    """The connections to a gateway's gRPC server, on the running event loop.

    Args:
        listener: socket to which phones connect.
        port_of_grpc: port of 127.0.0.1 on which gRPC listens.

    Attributes:
        open: open connections.
        by_port: connections by the source port that gRPC sees.
    """

    def __init__(self, listener: LimitedListener, port_of_grpc: int) -> None:
        self.port_of_grpc = port_of_grpc
        self.open = set[PassedConnection]()
        self.by_port: dict[int, PassedConnection] = {}
        self._server = PacedServer(listener, lambda connection: PassedConnection(connection, self))

    def close(self) -> None:
        """Accept no more connections; open connections last until gRPC ends them."""
        self._server.close()

    async def end(self) -> None:
        """End the connections, giving their other ends a second to receive the last bytes."""
        ends = [connection.ended for connection in self.open]
        if not ends:
            return
        for connection in self.open:
            connection.transport.close()
        await asyncio.wait(ends, timeout=_LAST_SECOND)
        for connection in self.open:
            connection.transport.abort()
        await asyncio.wait(ends)
