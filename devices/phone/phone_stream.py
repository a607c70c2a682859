"""The stream of a phone, whatever carries it: gRPC, or a WebSocket."""

from typing import Any, Protocol
from urllib.parse import unquote

import grpc

from samara.shared.proto.trainer_pb2 import FromPhone, ToPhone


class PhoneStream(Protocol):
    """The gateway's end of a stream, by which messages are written and read one after another."""

    @property
    def host(self) -> str:
        """The address of the other end."""

    async def write(self, message: ToPhone) -> None:
        """Send a message."""

    async def read(self) -> FromPhone | None:
        """Return the next message; None at the end of the stream."""


class GrpcStream:
    """A stream over gRPC.

    Args:
        context: gRPC's context of the call.
    """

    def __init__(self, context: Any) -> None:
        self._context = context

    @property
    def host(self) -> str:
        """The address of the other end."""
        return _host_of(self._context.peer())

    async def write(self, message: ToPhone) -> None:
        """Send a message."""
        await self._context.write(message)

    async def read(self) -> FromPhone | None:
        """Return the next message; None at the end of the stream."""
        message = await self._context.read()
        return None if message is grpc.aio.EOF else message


def _host_of(peer: str) -> str:
    """Return the address in gRPC's name of a peer, as in ipv4:192.0.2.1:40000."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")
