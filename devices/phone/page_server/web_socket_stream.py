"""A phone's stream over a WebSocket: each message of the stream is one binary message."""

from contextlib import suppress

from google.protobuf.message import DecodeError
from starlette.websockets import WebSocket
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

from samara.devices.phone.gateway_admission import RejectionError
from samara.shared.proto.trainer_pb2 import FromPhone, ToPhone

SUBPROTOCOL = "samara.phone.1"
CLOSE_CODES = 4000
"""Close codes of a stream's end are this and the number of the status that gRPC would give."""
MAX_UNREAD_PONGS = 1000
"""Most answers to pings, of up to 127 bytes, that the other end has not read."""
_MAX_REASON_BYTES = 123
KEEP = "keep"
"""Name, in the state of a connection's requests, of the function that `WebSocketStream.keep` is."""


class WebSocketConnection(WebSocketsSansIOProtocol):
    """A connection behind its handshake; one that sends pings and reads no answers ends."""

    _unread_pongs = 0

    def handle_ping(self) -> None:
        """Answer a ping."""
        super().handle_ping()
        waiting = self.transport.get_write_buffer_size()
        self._unread_pongs = self._unread_pongs + 1 if waiting else 0
        if self._unread_pongs > MAX_UNREAD_PONGS:
            self.transport.abort()

    def shutdown(self) -> None:
        """End the connection, also one that is ending."""
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
        self._socket, self._host = socket, host

    @property
    def host(self) -> str:
        """The address of the other end."""
        return self._host

    def keep(self) -> None:
        """Let its connection make room for no other one: the other end has proved its key."""
        self._socket.scope["state"][KEEP]()

    async def write(self, message: ToPhone) -> None:
        """Send a message.

        Raises:
            WebSocketDisconnect: if the other end has gone.
        """
        await self._socket.send_bytes(message.SerializeToString())

    async def read(self) -> FromPhone | None:
        """Return the next message; None at the end of the stream.

        What is no message of a stream is returned as an empty one, which is out of turn anywhere.
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
    """Return the close code that says why a gateway ends a stream."""
    return CLOSE_CODES + int(rejection.code.value[0])


def close_reason(rejection: RejectionError) -> str:
    """Return the reason of a gateway's end of a stream, as long as a close frame may hold."""
    return str(rejection).encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
