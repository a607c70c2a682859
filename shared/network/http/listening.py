"""Common setup of Samara's HTTP servers: uvicorn settings with limits, token files and sockets."""

import secrets
import socket
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from samara.shared.errors import ConfigError, DeviceError
from samara.shared.network.http.connection import Connection
from samara.shared.storage.files import write_secret

_KEEP_ALIVE_SECONDS = 5
_SHUTDOWN_SECONDS = 5
_HEADER_BYTES = 2**14
_TOKEN_BYTES, _SHORTEST_TOKEN = 32, 16


def server_config(
    app: ASGIApp, shutdown_seconds: int = _SHUTDOWN_SECONDS, **others: Any
) -> uvicorn.Config:
    """Return the settings of a server, with limits on connections, headers and times.

    Args:
        app: application that answers.
        shutdown_seconds: number of seconds in which open answers must finish when the server ends.
        others: further uvicorn settings; by default only HTTP is served.
    """
    settings: dict[str, Any] = {"http": Connection, "ws": "none"} | others
    return uvicorn.Config(
        app,
        loop="asyncio",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=shutdown_seconds,
        h11_max_incomplete_event_size=_HEADER_BYTES,
        **settings,
    )


def read_token(file: Path, named: str = "--token") -> str:
    """Return the token in a file. Create the file with a random token if it is missing.

    Args:
        file: path of the file, one line.
        named: option or name with which messages begin.

    Raises:
        ConfigError: if the file cannot be used, or its token is too short.
    """
    try:
        if not file.exists():
            write_secret(file, secrets.token_urlsafe(_TOKEN_BYTES).encode() + b"\n")
        token = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{named} {file}: cannot be used: {error}") from error
    if len(token) < _SHORTEST_TOKEN or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{named} {file}: a token must have at least {_SHORTEST_TOKEN} printable characters "
            "and no spaces; delete the file to get a valid token"
        )
    return token


def open_tcp(host: str, port: int, option: str = "--port") -> socket.socket:
    """Return a socket that listens on an address.

    Args:
        host: name or address of this machine.
        port: port; 0 selects a free port.
        option: option that sets the port, for messages.

    Raises:
        DeviceError: if the address is in use or not this machine's.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family)
        # Accepted connections inherit this option. Without it, a body waits 40 ms for a delayed
        # acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        raise DeviceError(f"{host}:{port}: cannot be opened: {error}; set {option}") from error
    return listener
