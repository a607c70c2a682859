"""A gateway that serves browsers, and a browser's stream in Python over a WebSocket."""

import hashlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from gateways import SECONDS, Served
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK
from websockets.sync.client import ClientConnection, connect

from samara.devices.gateway.page_server.join_relay import JoinRelay
from samara.devices.gateway.page_server.listening import PageServer
from samara.devices.gateway.page_server.page_app import STREAM_PATH, PageApp
from samara.devices.gateway.page_server.published_files import INTEGRITY_FILE, page_files
from samara.devices.gateway.page_server.web_socket_stream import SUBPROTOCOL
from samara.devices.live.connection.gateway_protocol import MAX_TASK_BYTES
from samara.shared.network.certificates import TlsFiles
from samara.shared.proto.trainer_pb2 import FromPhone, ToPhone

PAGE = {
    "index.html": b"<!DOCTYPE html><title>Samara</title>",
    "app.js": b"console.log(1);\n" * 10_000,
    "assets/engine-1.wasm": b"\0asm",
}


def make_page(folder: Path, files: Mapping[str, bytes] = PAGE) -> Path:
    """Write a built page: its files, and the list of its files."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    listed = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    (folder / INTEGRITY_FILE).write_text(json.dumps(listed))
    return folder


class ServedPage:
    """The page server of a gateway on an event loop.

    Attributes:
        origin: origin of the page's address.
    """

    def __init__(
        self,
        served: Served,
        page: Path,
        tls: TlsFiles | None = None,
        joining: JoinRelay | None = None,
        origin: str = "",
    ) -> None:
        app = PageApp(served.gateway, page_files(page), joining or JoinRelay(None), origin)
        self.server = PageServer(app, *((tls.certificate, tls.key) if tls else ()))
        self._served = served
        self.port = served.run(self.server.start("127.0.0.1:0"))
        self.address = f"127.0.0.1:{self.port}"
        self.origin = f"{'https' if tls else 'http'}://{self.address}"
        self.context = ssl.create_default_context(cafile=tls.authority) if tls else None
        if self.context:
            # websockets reads and writes in two threads, which loses a request now and then while
            # OpenSSL reads the tickets that TLS 1.3 sends behind its handshake
            self.context.maximum_version = ssl.TLSVersion.TLSv1_2

    def open(self, **changes: Any) -> AbstractContextManager[ClientConnection]:
        """Open a WebSocket like a page of this origin, or with other options."""
        return open_stream(self.origin, self.context, **changes)

    def close(self) -> None:
        self._served.run(self.server.stop())


def open_stream(
    page: str, context: ssl.SSLContext | None = None, **changes: Any
) -> AbstractContextManager[ClientConnection]:
    """A WebSocket to a gateway, opened like by its page at this origin, or with other options."""
    options: dict[str, Any] = {
        "origin": page,
        "subprotocols": [SUBPROTOCOL],
        "compression": None,
        "max_size": MAX_TASK_BYTES,
        "ssl": context,
        "open_timeout": SECONDS,
        "ping_interval": None,
    }
    address = f"ws{page.removeprefix('http')}{STREAM_PATH}"
    opened: AbstractContextManager[ClientConnection] = connect(address, **options | changes)
    return opened


@contextmanager
def serve_page(served: Served, folder: Path, *arguments: Any, **named: Any) -> Iterator[ServedPage]:
    """A page server in front of a gateway."""
    page = ServedPage(served, make_page(folder), *arguments, **named)
    try:
        yield page
    finally:
        page.close()


class StreamEndedError(Exception):
    """The gateway has ended a stream, with a close code and a reason."""


class WebSocketStub:
    """A phone's replacement for gRPC's stub of the gateway's service."""

    def __init__(self, opened: Callable[[], AbstractContextManager[ClientConnection]]) -> None:
        self._open = opened

    def Attach(self, outgoing: Iterator[FromPhone]) -> "_Stream":  # noqa: N802
        return _Stream(self._open(), outgoing)


class _Stream:
    """A stream: iteration reads it, and a thread sends the phone's messages."""

    def __init__(
        self, opened: AbstractContextManager[ClientConnection], outgoing: Iterator[FromPhone]
    ) -> None:
        self._stack, self._outgoing = ExitStack(), outgoing
        self._socket = self._stack.enter_context(opened)
        self._sender = threading.Thread(target=self._send_all, daemon=True)
        self._sender.start()

    def _send_all(self) -> None:
        for message in self._outgoing:
            try:
                self._socket.send(message.SerializeToString())
            except ConnectionClosed:
                return

    def __iter__(self) -> Iterator[ToPhone]:
        try:
            for message in self._socket:
                assert isinstance(message, bytes)
                yield ToPhone.FromString(message)
        except ConnectionClosedOK:
            return
        except ConnectionClosed as closed:
            raise StreamEndedError(*_end_of(closed)) from closed

    def cancel(self) -> None:
        self._stack.close()
        self._sender.join(SECONDS)


def end_of(socket: ClientConnection) -> tuple[int, str]:
    """Return the close code and reason of a stream's end; earlier messages are ignored."""
    try:
        while True:
            socket.recv(SECONDS)
    except ConnectionClosed as closed:
        return _end_of(closed)


def _end_of(closed: ConnectionClosed) -> tuple[int, str]:
    return (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")
