"""The server of `samara client serve`, on loopback, another address, or a Unix socket."""

import asyncio
import os
import secrets
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn

from client.protocol.remote_model import RemoteModel
from client.training.own_examples import OwnExample
from devices.live.http_api import HttpApi
from devices.live.http_guard import is_loopback
from devices.live.http_protocol import Connection
from devices.live.http_requests import FeedbackBody
from shared.errors import ConfigError, DeviceError
from shared.files import write_secret

_KEEP_ALIVE_SECONDS = 5
_SHUTDOWN_SECONDS = 5
_HEADER_BYTES = 2**14
_OWNER_ONLY_UMASK = 0o177
_TOKEN_BYTES, _SHORTEST_TOKEN = 32, 16


def read_token(file: Path) -> str:
    """Return the token in a file, which is made with a random one if it does not exist.

    Raises:
        ConfigError: if the file cannot be used, or its token is too short.
    """
    try:
        if not file.exists():
            write_secret(file, secrets.token_urlsafe(_TOKEN_BYTES).encode() + b"\n")
        token = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--token {file}: cannot be used: {error}") from error
    if len(token) < _SHORTEST_TOKEN or not token.isprintable() or " " in token:
        raise ConfigError(
            f"--token {file}: a token has at least {_SHORTEST_TOKEN} printable characters and no "
            "spaces; delete the file and a good one is made"
        )
    return token


def check_address(host: str, has_token: bool) -> None:
    """Raise an error if other machines could ask without a token.

    Raises:
        ConfigError: if the address is not loopback, and there is no token.
    """
    if not is_loopback(host) and not has_token:
        raise ConfigError(
            f"--host {host}: other machines could ask; add --token FILE, and note that requests "
            "are not encrypted"
        )


def open_tcp(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Raises:
        DeviceError: if it is in use or not this machine's.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family)
        # accepted connections have it too; else a body waits 40 ms for a delayed acknowledgement
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        raise DeviceError(f"{host}:{port}: cannot be opened: {error}; set --port") from error
    return listener


def open_unix(path: Path) -> socket.socket:
    """Return a Unix socket that only its owner may open; one that nobody listens on is replaced.

    Raises:
        DeviceError: if the path is something else, in use, or cannot be opened.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous = os.umask(_OWNER_ONLY_UMASK)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            with socket.socket(socket.AF_UNIX) as probe, suppress(ConnectionRefusedError):
                probe.connect(str(path))
                raise FileExistsError(0, "another server listens there")
            path.unlink()
        listener.bind(str(path))
        listener.listen()
    except OSError as error:
        listener.close()
        raise DeviceError(f"--socket {path}: cannot be opened: {error}") from error
    finally:
        os.umask(previous)
    return listener


Learn = Callable[[FeedbackBody], OwnExample]


def serve(
    trainer: Path, learn: Learn, listener: socket.socket, token: str = "", run: str = ""
) -> None:
    """Serve the models of a trainer until a signal raises KeyboardInterrupt.

    Args:
        trainer: socket of the trainer.
        learn: function that keeps a correction as an example of the client.
        listener: socket that requests arrive on.
        token: token that a request must bring; empty asks for none.
        run: first digits of the id of the run that is asked; empty for the latest.
    """
    with listener:
        asyncio.run(_serve(trainer, learn, listener, token, run))


async def _serve(
    trainer: Path, learn: Learn, listener: socket.socket, token: str, run: str
) -> None:
    is_unix = listener.family == socket.AF_UNIX
    checks_host = not is_unix and is_loopback(listener.getsockname()[0])
    async with RemoteModel(trainer) as models:
        config = uvicorn.Config(
            HttpApi(models, learn, run).app(token, checks_host),
            http=Connection,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            h11_max_incomplete_event_size=_HEADER_BYTES,
        )
        await uvicorn.Server(config).serve(sockets=[listener])
