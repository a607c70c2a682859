"""The ASGI application for browsers: page and program files, requests to join, and streams."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.responses import FileResponse, Response
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from samara.devices.gateway.admission import RejectionError
from samara.devices.gateway.gateway import Gateway
from samara.devices.gateway.page_server.join_relay import JoinRelay, is_about_joining
from samara.devices.gateway.page_server.published_files import PublishedFile
from samara.devices.gateway.page_server.web_socket_stream import (
    SUBPROTOCOL,
    WebSocketStream,
    close_code,
    close_reason,
)
from samara.shared.network.http.guard import is_loopback

log = logging.getLogger("samara.gateway")

STREAM_PATH = "/stream"
PIECE_SECONDS = 30.0
"""Time limit for sending 64 KiB of a file, in seconds; a slower browser requests the rest again."""
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self' 'wasm-unsafe-eval'",
        *(f"{kind}-src 'self'" for kind in ("connect", "font", "manifest", "style", "worker")),
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""Headers of every response: only this origin's content may run on the page or embed it."""


@dataclass(frozen=True)
class PageApp:
    """Serves files, joining requests and streams to browsers.

    Attributes:
        gateway: gateway that serves the streams.
        files: published files by path.
        joining: relay of joining requests.
        origin: origin at which browsers find the page behind a reverse proxy; empty if they connect
            to this server.
    """

    gateway: Gateway
    files: Mapping[str, PublishedFile]
    joining: JoinRelay
    origin: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or serve a stream."""
        if scope["type"] == "websocket":
            await self._serve_stream(WebSocket(scope, receive, send))
        elif scope["type"] == "http":
            request = Request(scope, receive)
            response = await self._response(request)
            response.headers.update(HEADERS)
            await _send_in_time(response, request, send)

    async def _response(self, request: Request) -> Response:
        if not self._is_asked_as_itself(request):
            return Response(status_code=403)
        method = request.method
        path = request.url.path
        if is_about_joining(method, path):
            response = await self.joining.answer(request, _host_of(request))
            response.headers["cache-control"] = "no-store"
            return response
        if (file := self.files.get(path)) is None:
            return Response(status_code=404, headers={"cache-control": "no-store"})
        if method not in ("GET", "HEAD"):
            return Response(status_code=405, headers={"allow": "GET, HEAD"})
        return _file_response(file, request.headers)

    async def _serve_stream(self, socket: WebSocket) -> None:
        """Serve a phone's stream, if a page of this origin opened it."""
        is_own = self._is_asked_as_itself(socket) and "origin" in socket.headers
        if socket.url.path != STREAM_PATH or not is_own:
            await socket.close()  # a close before the accept gives status 403
            return
        named = SUBPROTOCOL in socket.scope["subprotocols"]
        await socket.accept(SUBPROTOCOL if named else None)
        end: tuple[int, str] = 1000, ""
        with suppress(WebSocketDisconnect, RuntimeError):  # the other end is gone
            try:
                await self.gateway.serve(WebSocketStream(socket, _host_of(socket)))
            except RejectionError as rejection:
                end = close_code(rejection), close_reason(rejection)
            await socket.close(*end)

    def _is_asked_as_itself(self, connection: HTTPConnection) -> bool:
        """Return whether a request is addressed to this server, and not sent by a foreign page.

        The headers ``Host`` and ``Origin`` decide this.
        """
        hosts, origins = (connection.headers.getlist(name) for name in ("host", "origin"))
        scheme = "https" if connection.scope["scheme"] in ("https", "wss") else "http"
        if len(hosts) != 1 or len(origins) > 1:
            return False
        own = self.origin or f"{scheme}://{hosts[0]}"
        is_named = bool(self.origin) or scheme == "https" or is_loopback(_name_in(own))
        return is_named and (not origins or origins[0] == own)


def _file_response(file: PublishedFile, asked: Headers) -> Response:
    kept = "public, max-age=31536000, immutable" if file.is_immutable else "no-cache"
    tag = f'"{file.sha256}"'
    headers = {"etag": tag, "cache-control": kept}
    if tag in asked.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return FileResponse(file.file, headers=headers, media_type=file.media_type)


async def _send_in_time(response: Response, request: Request, send: Send) -> None:
    """Send a response, unless the other end is too slow to receive it."""

    async def send_piece(message: Message) -> None:
        async with asyncio.timeout(PIECE_SECONDS):
            await send(message)

    try:
        await response(request.scope, request.receive, send_piece)
    except TimeoutError:
        log.debug(
            "%s: sending stopped, because a browser received the file too slowly", request.url.path
        )


def _host_of(connection: HTTPConnection) -> str:
    return connection.client.host if connection.client else ""


def _name_in(origin: str) -> str:
    """Return the host name of an origin; empty if it cannot be read."""
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""
