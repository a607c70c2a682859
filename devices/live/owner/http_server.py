"""The HTTP server of `samara client serve`, on loopback, another address, or a Unix socket."""

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn

from samara.client.trainer.remote_model import RemoteModel
from samara.client.training.own_examples import OwnExample
from samara.devices.live.owner.http_api import HttpApi
from samara.devices.live.owner.http_requests import FeedbackBody
from samara.shared.errors import ConfigError, DeviceError
from samara.shared.network.http.guard import is_loopback
from samara.shared.network.http.listening import server_config

_OWNER_ONLY_UMASK = 0o177


def check_address(host: str, has_token: bool) -> None:
    """Raise an error if other machines could send requests without a token.

    Raises:
        ConfigError: if the address is not loopback and no token is set.
    """
    if not is_loopback(host) and not has_token:
        raise ConfigError(
            f"--host {host}: other machines could send questions; add --token FILE, and note that "
            f"requests are not encrypted"
        )


def open_unix(path: Path) -> socket.socket:
    """Return a Unix socket that only its owner may open; replace a socket without a listener.

    Raises:
        DeviceError: if the path is not a socket, is in use, or cannot be opened.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous = os.umask(_OWNER_ONLY_UMASK)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            with socket.socket(socket.AF_UNIX) as probe, suppress(ConnectionRefusedError):
                probe.connect(str(path))
                raise FileExistsError(0, "another server listens on this socket")
            path.unlink()
        listener.bind(str(path))
        listener.listen()
    except OSError as error:
        listener.close()
        raise DeviceError(
            f"--socket {path}: the socket cannot be opened: {error}; give another path"
        ) from error
    finally:
        os.umask(previous)
    return listener


Learn = Callable[[FeedbackBody], OwnExample]


def serve(
    trainer: Path, learn: Learn, listener: socket.socket, token: str = "", run: str = ""
) -> None:
    """Serve the models of a trainer until a signal raises KeyboardInterrupt.

    Args:
        trainer: path of the trainer's socket.
        learn: function that stores a correction on disk as an example of the client.
        listener: socket on which requests arrive.
        token: token that requests must carry; empty requires none.
        run: first digits of the id of the run to ask; empty for the latest.
    """
    with listener:
        asyncio.run(_serve(trainer, learn, listener, token, run))


async def _serve(
    trainer: Path, learn: Learn, listener: socket.socket, token: str, run: str
) -> None:
    is_unix = listener.family == socket.AF_UNIX
    checks_host = not is_unix and is_loopback(listener.getsockname()[0])
    async with RemoteModel(trainer) as models:
        app = HttpApi(models, learn, run).app(token, checks_host)
        await uvicorn.Server(server_config(app)).serve(sockets=[listener])
