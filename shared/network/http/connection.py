"""HTTP connections with deadlines, a limit on their number, and errors in OpenAI's form.

Unmodified uvicorn answers malformed HTTP with plain text, and waits for a request without a time
limit. It also fails if the rest of a body is damaged after the request was answered.
"""

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from samara.shared.network.http.guard import error_body

REQUEST_SECONDS = 30.0
"""Seconds within which a request's headers must arrive, after the connection or the last answer."""


class Connection(H11Protocol):
    """A connection that closes if no request arrives in time.

    Attributes:
        most_connections: largest number of simultaneous connections. Further connections get status
            503.
    """

    most_connections = 64
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline for a request, unless there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            self._refuse(503, "too many connections are open; try again in a moment")
        else:
            self._await_request(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        super().connection_lost(exc)
        if self._deadline:
            self._deadline.cancel()

    def on_response_complete(self) -> None:
        """Start the deadline for the next request."""
        answered = self.cycle
        super().on_response_complete()
        self._await_request(answered)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection to the WebSocket protocol, which sets other deadlines."""
        if self._deadline:
            self._deadline.cancel()
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """Refuse malformed HTTP, unless the request was answered already."""
        self._refuse(400, "this is not a valid HTTP request")

    def _await_request(self, answered: RequestResponseCycle | None) -> None:
        if self._deadline:
            self._deadline.cancel()
        if not self.transport.is_closing():
            end = self._end_without_request
            self._deadline = self.loop.call_later(REQUEST_SECONDS, end, answered)

    def _end_without_request(self, answered: RequestResponseCycle | None) -> None:
        if self.cycle is answered:
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        if self.cycle:
            self.cycle.disconnected = True  # an answer that is still being prepared is then dropped
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            body = json.dumps(error_body(status, message)).encode()
            headers = {
                "content-type": "application/json",
                "content-length": str(len(body)),
                "connection": "close",
            }
            for event in (
                h11.Response(status_code=status, headers=list(headers.items())),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
