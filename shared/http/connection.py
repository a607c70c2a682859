"""The connections of Samara's HTTP servers: uvicorn's, with limits and errors of OpenAI's form.

uvicorn answers what is no HTTP with plain text, waits for a request as long as the other side
likes, and fails if a body turns out to be damaged after its request has been answered.
"""

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from samara.shared.http.guard import error_body

REQUEST_SECONDS = 30.0
"""Longest time in which a request's headers arrive, counted from connection or the last answer."""


class Connection(H11Protocol):
    """A connection, which ends if it brings no request in time.

    Attributes:
        most_connections: most connections at a time; others get status 503.
    """

    most_connections = 64
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, unless there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            self._refuse(503, "too many connections are open; ask again in a moment")
        else:
            self._await_request(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        super().connection_lost(exc)
        if self._deadline:
            self._deadline.cancel()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        answered = self.cycle
        super().on_response_complete()
        self._await_request(answered)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Leave the connection to WebSocket, which has deadlines of its own."""
        if self._deadline:
            self._deadline.cancel()
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP; a request that has an answer gets no second one."""
        self._refuse(400, "this is no valid HTTP request")

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
            self.cycle.disconnected = True  # whoever works on its answer drops it
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
