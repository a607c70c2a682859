"""A phone's stream, over gRPC or a WebSocket."""

from typing import Any, Protocol

import grpc

from samara.devices.gateway.passed_connections import PassedConnections
from samara.shared.proto.trainer_pb2 import FromPhone, ToPhone


class PhoneStream(Protocol):
    """The gateway's end of a stream, which writes and reads messages one at a time."""

    @property
    def host(self) -> str:
        """The address of the other end."""

    def keep(self) -> None:
        """Protect this connection from eviction by new connections.

        It is called once the other end has proved that it holds its key.
        """

    async def write(self, message: ToPhone) -> None:
        """Send a message."""

    async def read(self) -> FromPhone | None:
        """Return the next message; None at the end of the stream."""


class GrpcStream:
    """A stream over gRPC.

    Args:
        context: gRPC's context of the call.
        connections: connections that are passed on to gRPC.

    Attributes:
        is_allowed: whether the stream is on one of these connections, and within the connection's
            limit on streams.
    """

    def __init__(self, context: Any, connections: PassedConnections) -> None:
        self._context = context
        self._connection = connections.by_port.get(_port_of(context.peer()))
        self.is_allowed = self._connection is not None and self._connection.open_stream()

    @property
    def host(self) -> str:
        """The address of the other end."""
        return self._connection.host if self._connection else ""

    def keep(self) -> None:
        """Protect this connection from eviction by new connections.

        It is called once the other end has proved that it holds its key.
        """
        if self._connection:
            self._connection.keep()

    async def write(self, message: ToPhone) -> None:
        """Send a message."""
        await self._context.write(message)

    async def read(self) -> FromPhone | None:
        """Return the next message; None at the end of the stream."""
        message = await self._context.read()
        return None if message is grpc.aio.EOF else message


def _port_of(peer: str) -> int:
    """Return the port in gRPC's name of a peer, such as ipv4:127.0.0.1:40000; 0 if it has none."""
    port = peer.rpartition(":")[2]
    return int(port) if port.isdecimal() else 0
