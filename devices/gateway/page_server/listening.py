"""The listening port of a gateway's page server: TLS, connections and their limits."""

import asyncio
import logging
import ssl
import sys
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.server import ServerState

from samara.devices.gateway.gateway import MAX_ANSWER_BYTES
from samara.devices.gateway.page_server.page_app import PageApp
from samara.devices.gateway.page_server.web_socket_stream import KEEP, WebSocketConnection
from samara.devices.gateway.passed_connections import MAX_UNPROVEN, MAX_UNPROVEN_OF_NETWORK
from samara.shared.errors import DeviceError
from samara.shared.network.http.connection import Connection
from samara.shared.network.http.limited_listener import (
    LimitedConnection,
    LimitedListener,
    tls_limits,
)
from samara.shared.network.http.listening import server_config
from samara.shared.network.http.paced_server import PacedServer

log = logging.getLogger("samara.gateway")

PING_SECONDS = 240.0
"""Seconds of silence after which a browser is pinged, like other phones."""
PONG_SECONDS = 20.0
"""Time limit for the answer to a ping, in seconds."""
_PROXIES = ["127.0.0.1", "::1"]


class PageConnection(Connection):
    """A browser's connection; the listener that accepts connections limits their number."""

    most_connections = sys.maxsize


class PageServer:
    """A server for browsers, on the running event loop.

    Args:
        app: ASGI application that answers.
        certificate: certificate chain, PEM, already read; None for plain text.
        key: private key of the certificate, PEM.
    """

    def __init__(
        self, app: PageApp, certificate: Path | None = None, key: Path | None = None
    ) -> None:
        behind_proxy = ProxyHeadersMiddleware(app, _PROXIES) if app.origin else app  # type: ignore[arg-type]
        self._config: uvicorn.Config = server_config(
            behind_proxy,  # type: ignore[arg-type]
            http=PageConnection,
            ws=WebSocketConnection,
            ws_max_size=MAX_ANSWER_BYTES,
            ws_ping_interval=PING_SECONDS,
            ws_ping_timeout=PONG_SECONDS,
            ws_per_message_deflate=False,
        )
        self._config.load()
        self._certificate = certificate
        self._key = key
        self._state = ServerState()
        self._context: ssl.SSLContext | None = None
        if certificate:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.set_alpn_protocols(["http/1.1"])
            self._read_certificate(self._context)
        self._has_proxy = bool(app.origin)
        self._lines = app.gateway.lines
        self._server: PacedServer | None = None

    async def start(self, address: str) -> int:
        """Listen on host:port; return the port.

        Raises:
            DeviceError: if the address cannot be used.
        """
        host, _, port = address.rpartition(":")
        limits: dict[str, Any] = tls_limits() if self._context else {}
        share = MAX_UNPROVEN if self._has_proxy else MAX_UNPROVEN_OF_NETWORK
        try:
            listener = LimitedListener(
                host.strip("[]"), int(port), MAX_UNPROVEN, share, self._lines
            )
        except OSError as error:
            raise DeviceError(
                f"--web {address}: the port cannot be opened: {error}; give another "
                f"address or a free port"
            ) from error
        self._server = PacedServer(
            listener, self._protocol, not self._has_proxy, ssl=self._context, **limits
        )
        number: int = listener.getsockname()[1]
        return number

    def renew_certificate(self) -> None:
        """Reload the certificate for new connections."""
        if self._context:
            try:
                self._read_certificate(self._context)
            except OSError as error:
                log.warning(
                    "the certificate for browsers cannot be renewed and stays as it is: %s", error
                )

    def _read_certificate(self, context: ssl.SSLContext) -> None:
        assert self._certificate is not None, "a context exists only with a certificate"
        context.load_cert_chain(self._certificate, self._key, password="")

    async def stop(self) -> None:
        """End all connections, and stop listening."""
        assert self._server is not None, "start must be called first"
        self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=1.0)

    def _protocol(self, connection: LimitedConnection) -> asyncio.Protocol:
        keep = partial(connection.listener.keep, connection.address)
        return PageConnection(self._config, self._state, {KEEP: keep})
