"""Unused connections to a SuperLink's port, over real sockets and TLS."""

import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from uvicorn import Config, Server

from samara.server.live import connection_limits as limits
from samara.server.live.connection_limits import LimitedLoop, LimitedProtocol
from samara.shared.network.certificates import TlsFiles, make_certificates
from samara.shared.network.http import limited_listener
from samara.shared.network.http.limited_listener import LimitedListener

SECONDS = 30.0
PROVED = "/proved"
HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Return the sizes of the body's parts as they arrive; one path is that of a valid request."""
    if scope["path"] == PROVED:
        LimitedLoop.keep(scope["client"])
    parts: list[int] = []
    more = True
    while more:
        message = await receive()
        parts.append(len(message.get("body", b"")))
        more = message.get("more_body", False)
    headers = [(b"parts", " ".join(map(str, parts)).encode())]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def tls(tmp_path: Path) -> TlsFiles:
    return make_certificates(tmp_path, [])


@pytest.fixture
def server(tls: TlsFiles) -> Iterator[tuple[Server, threading.Thread]]:
    """A server and its thread."""
    loop = f"{LimitedLoop.__module__}:{LimitedLoop.__name__}"
    config = Config(
        app,
        port=0,
        loop=loop,
        http=LimitedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        ssl_certfile=tls.certificate,
        ssl_keyfile=tls.key,
    )
    server = Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield server, thread
    server.should_exit = True
    thread.join()


@pytest.fixture
def port(server: tuple[Server, threading.Thread]) -> int:
    """The port of the server."""
    return int(server[0].servers[0].sockets[0].getsockname()[1])


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), SECONDS)


def is_ended(connection: socket.socket) -> bool:
    """Wait for the end of a connection; False if the server sends something instead."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def get(port: int, tls: TlsFiles) -> int:
    context = ssl.create_default_context(cafile=str(tls.authority))
    return httpx.get(f"https://127.0.0.1:{port}/", verify=context, timeout=SECONDS).status_code


def get_in_the_end(port: int, tls: TlsFiles) -> int:
    """Repeat a request until the server knows that earlier connections are closed."""
    end = time.monotonic() + SECONDS
    while True:
        try:
            return get(port, tls)
        except httpx.TransportError:
            assert time.monotonic() < end, "closed connections are still counted"


@pytest.mark.parametrize("sent", [b"", HALF_A_HELLO])
def test_a_handshake_that_does_not_end_is_ended(
    sent: bytes, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(limited_listener, "HANDSHAKE_SECONDS", 0.3)
    port = request.getfixturevalue("port")
    with connect(port) as connection:
        connection.sendall(sent)
        assert is_ended(connection)
    assert get(port, request.getfixturevalue("tls")) == 204


@pytest.mark.parametrize("limit", ["MAX_CONNECTIONS", "MAX_CONNECTIONS_OF_NETWORK"])
def test_connections_before_their_handshake_are_counted(
    limit: str, tls: TlsFiles, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(limited_listener, limit, 3)
    port: int = request.getfixturevalue("port")
    with ExitStack() as stack:
        opened = [stack.enter_context(connect(port)) for _ in range(6)]
        assert all(is_ended(connection) for connection in opened[:3])
        assert select.select(opened[3:], [], [], 0)[0] == []
    for _ in range(10):  # each is taken off the count when it ends
        assert get_in_the_end(port, tls) == 204


def test_a_connection_with_a_sound_request_makes_no_room(
    tls: TlsFiles, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(limited_listener, "MAX_CONNECTIONS_OF_NETWORK", 3)
    port: int = request.getfixturevalue("port")
    context = ssl.create_default_context(cafile=str(tls.authority))
    with httpx.Client(verify=context, timeout=SECONDS) as client, ExitStack() as stack:
        assert client.get(f"https://127.0.0.1:{port}{PROVED}").status_code == 204
        opened = [stack.enter_context(connect(port)) for _ in range(6)]
        assert all(is_ended(connection) for connection in opened[:3])
        # over the same connection
        assert client.get(f"https://127.0.0.1:{port}/").status_code == 204
        assert select.select(opened[3:], [], [], 0)[0] == []


@pytest.mark.parametrize("sent", [b"", b"POST /v1/fleet/pull-messages HT"])
def test_a_connection_without_a_request_is_ended(
    sent: bytes, port: int, tls: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.05)
    context = ssl.create_default_context(cafile=str(tls.authority))
    with (
        connect(port) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(sent)
        assert is_ended(connection)


def test_of_a_tls_connection_little_is_read_at_once(port: int, tls: TlsFiles) -> None:
    """The server reads few bytes at once from any TLS connection, which limits its memory."""
    with httpx.Client(verify=ssl.create_default_context(cafile=str(tls.authority))) as client:
        for _ in range(3):
            answer = client.post(f"https://127.0.0.1:{port}/", content=bytes(2**20))
            assert max(map(int, answer.headers["parts"].split())) <= 2 * limited_listener.READ_BYTES


@pytest.mark.parametrize("order", [1, -1])
def test_a_name_stands_for_its_address_of_ipv4(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **named: found[::order])
    with LimitedListener("both.example", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_port_in_use_is_an_error(port: int) -> None:
    with pytest.raises(OSError, match="in use"):
        LimitedListener("127.0.0.1", port)


def test_a_server_ends_without_the_peers_of_idle_connections(
    tls: TlsFiles, port: int, server: tuple[Server, threading.Thread]
) -> None:
    """A peer that has lost its network does not confirm the end of its connection."""
    context = ssl.create_default_context(cafile=str(tls.authority))
    with httpx.Client(verify=context, timeout=SECONDS) as client:
        assert client.get(f"https://127.0.0.1:{port}/").status_code == 204
        server[0].should_exit = True
        server[1].join(SECONDS / 2)
        assert not server[1].is_alive()
