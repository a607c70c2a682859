"""The connections of `samara client serve`: their number, their time limits, and their errors."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

from samara.shared.network.http import connection
from samara.shared.network.http.connection import Connection
from samara.shared.network.http.listening import open_tcp

SECONDS = 60
ASKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answer with a text as soon as the headers are there."""
    await PlainTextResponse("good")(scope, receive, send)


async def answer_body(scope: Any, receive: Any, send: Any) -> None:
    """Answer with a text after the first part of the body."""
    await receive()
    await PlainTextResponse("good")(scope, receive, send)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def listening(app: Any) -> AsyncGenerator[Callable[[], Awaitable[Streams]], None]:
    """Start a server; yield a function that connects to it."""
    config = uvicorn.Config(app, http=Connection, ws="none", lifespan="off", log_level="error")
    config.load()
    state, loop, opened = ServerState(), asyncio.get_running_loop(), list[Streams]()
    failures: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: failures.append(context))
    server = await loop.create_server(lambda: Connection(config, state, {}), "127.0.0.1", 0)

    async def connect() -> Streams:
        streams = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        opened.append(streams)
        return streams

    try:
        async with asyncio.timeout(SECONDS):
            yield connect
    finally:
        for _, writer in opened:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()
        while state.connections:
            await asyncio.sleep(0)
    assert not failures


def error_of(reply: bytes, status: int) -> Any:
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"content-type: application/json" in head
    return json.loads(body)["error"]


def test_what_is_no_http_gets_an_error_of_openais_form() -> None:
    async def scenario() -> bytes:
        async with listening(answer) as connect:
            reader, writer = await connect()
            writer.write(b"\x16\x03\x01\r\n\r\n")
            return await reader.read()

    assert error_of(asyncio.run(scenario()), 400)["type"] == "invalid_request_error"


@pytest.mark.parametrize("app", [answer, answer_body])
def test_a_request_with_a_damaged_body_has_one_answer(
    app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> bytes:
        async with listening(app) as connect:
            reader, writer = await connect()
            writer.write(ASKED + b"zz\r\n\r\n")
            return await reader.read()

    reply = asyncio.run(scenario())
    assert reply.count(b"HTTP/1.1 ") == 1
    assert not caplog.records


def test_damage_after_the_answer_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> bytes:
        async with listening(answer) as connect:
            reader, writer = await connect()
            writer.write(ASKED)
            reply = await reader.readuntil(b"good")
            writer.write(b"zz\r\n\r\n")
            return reply + await reader.read()

    assert asyncio.run(scenario()).endswith(b"\r\n\r\ngood")
    assert not caplog.records


def test_too_many_connections_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection.Connection, "most_connections", 1)

    async def scenario() -> bytes:
        async with listening(answer) as connect:
            reader, writer = await connect()
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await reader.readuntil(b"good")
            return await (await connect())[0].read()

    assert error_of(asyncio.run(scenario()), 503)["type"] == "server_error"


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n\r\nG"]
)
def test_a_connection_without_a_request_ends(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.05)

    async def scenario() -> bytes:
        async with listening(answer) as connect:
            reader, writer = await connect()
            writer.write(sent)
            return await reader.read()

    assert asyncio.run(scenario()).endswith(b"good" if b"Host" in sent else b"")


def test_an_answer_is_sent_without_waiting_for_acknowledgements() -> None:
    with open_tcp("127.0.0.1", 0) as listener:
        address = listener.getsockname()[:2]
        with socket.create_connection(address), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
