"""The Unix socket of a resident trainer, and connections to the socket."""

from pathlib import Path

import grpc

from samara.shared.errors import TrainerError

MAX_SOCKET_BYTES = 107
"""Maximum length of the path of a Unix socket, in bytes."""
RECONNECT_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 500),
)
"""gRPC options for reconnecting quickly to a restarted trainer. gRPC's default delay grows to two
minutes."""


def address_of(socket: Path) -> str:
    """Return the gRPC address of a Unix socket.

    Raises:
        TrainerError: if the path is too long for a socket.
    """
    path = str(socket.absolute())
    if len(path.encode()) > MAX_SOCKET_BYTES:
        raise TrainerError(
            f"{path}: the path of a socket may have {MAX_SOCKET_BYTES} bytes, but this path has "
            f"{len(path.encode())}; give a client a shorter --home"
        )
    return f"unix:{path}"


def open_channel(socket: Path) -> grpc.Channel:
    """Return a gRPC channel to a trainer; it connects on first use.

    Raises:
        TrainerError: if the path is too long for a socket.
    """
    return grpc.insecure_channel(address_of(socket), RECONNECT_OPTIONS)
