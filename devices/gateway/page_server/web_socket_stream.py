"""A phone's stream over a WebSocket, with one binary message per message of the stream."""

from contextlib import suppress

from google.protobuf.message import DecodeError
from starlette.websockets import WebSocket
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

from samara.devices.gateway.admission import RejectionError
from samara.shared.proto.trainer_pb2 import FromPhone, ToPhone

SUBPROTOCOL = "samara.phone.1"
CLOSE_CODES = 4000
"""Base of the WebSocket close codes, to which the number of the equivalent gRPC status is added."""
MAX_UNREAD_PONGS = 1000
"""Maximum number of answers to pings, up to 127 bytes each, that the other end has not read."""
_MAX_REASON_BYTES = 123
KEEP = "keep"
"""Key, in the ASGI state of a request, of the function that `WebSocketStream.keep` calls."""


class WebSocketConnection(WebSocketsSansIOProtocol):
    """A connection after its handshake.

    The connection ends if the other end sends pings without reading the pongs.
    """

    _unread_pongs = 0

    def handle_ping(self) -> None:
        """Answer a ping."""
        super().handle_ping()
        waiting = self.transport.get_write_buffer_size()
        self._unread_pongs = self._unread_pongs + 1 if waiting else 0
        if self._unread_pongs > MAX_UNREAD_PONGS:
            self.transport.abort()

    def shutdown(self) -> None:
        """End the connection, even if it is already closing."""
        with suppress(InvalidState):
            super().shutdown()
        self.transport.close()


class WebSocketStream:
    """The gateway's end of a phone's stream over a WebSocket.

    Args:
        socket: accepted WebSocket.
        host: address of the other end.
    """

    def __init__(self, socket: WebSocket, host: str) -> None:
        self._socket = socket
        self._host = host

    @property
    def host(self) -> str:
        """The address of the other end."""
        return self._host

    def keep(self) -> None:
        """Protect this connection from eviction by new connections.

        It is called once the other end has proved that it holds its key.
        """
        self._socket.scope["state"][KEEP]()

    async def write(self, message: ToPhone) -> None:
        """Send a message.

        Raises:
            WebSocketDisconnect: if the other end is gone.
        """
        await self._socket.send_bytes(message.SerializeToString())

    async def read(self) -> FromPhone | None:
        """Return the next message; None at the end of the stream.

        For an invalid message, the result is an empty message. The gateway then ends the stream,
        because an empty message is always out of turn.
        """
        received = await self._socket.receive()
        if received["type"] != "websocket.receive":
            return None
        try:
            message: FromPhone = FromPhone.FromString(received.get("bytes") or b"")
        except DecodeError:
            return FromPhone()
        return message


def close_code(rejection: RejectionError) -> int:
    """Return the close code for the reason why a gateway ends a stream."""
    return CLOSE_CODES + int(rejection.code.value[0])


def close_reason(rejection: RejectionError) -> str:
    """Return the reason why a gateway ends a stream, truncated to fit a close frame."""
    return str(rejection).encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
