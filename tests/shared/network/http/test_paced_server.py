"""Connections that wait for their network's turn, over real sockets."""

import asyncio
import socket
from contextlib import ExitStack
from typing import Any

import pytest

from samara.shared.network.http import paced_server
from samara.shared.network.http.limited_listener import LimitedConnection, LimitedListener
from samara.shared.network.http.paced_server import PacedServer

SECONDS = 20.0


class Greeting(asyncio.Protocol):
    """Sends one byte as soon as a connection's turn begins."""

    def __init__(self, connection: LimitedConnection) -> None:
        pass

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"!")


async def greeted(port: int, source: str) -> bytes:
    """Connect and return the greeting; empty if the connection was closed before."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))
    except OSError:
        return b""
    try:
        return await reader.read(1)
    except OSError:
        return b""
    finally:
        writer.close()


def test_a_network_whose_turns_are_used_up_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced_server, "CONNECTIONS_PER_SECOND", 1e-6)
    monkeypatch.setattr(paced_server, "CONNECTIONS_AT_ONCE", 2)

    async def check() -> None:
        listener = LimitedListener("127.0.0.1", 0, 100, 4)
        server, port = PacedServer(listener, Greeting), listener.getsockname()[1]
        waiting = [asyncio.ensure_future(greeted(port, "127.0.1.1")) for _ in range(12)]
        # of 12 connections 3 are begun with, 4 wait, and the others have made room
        while sum(held.done() for held in waiting) < 8:
            await asyncio.sleep(0.01)
        assert await greeted(port, "127.0.2.1") == b"!"
        server.close()
        said = await asyncio.wait_for(asyncio.gather(*waiting), SECONDS)
        assert 1 <= said.count(b"!") <= 3

    asyncio.run(check())


def test_turns_come_in_the_order_of_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced_server, "CONNECTIONS_PER_SECOND", 200.0)
    monkeypatch.setattr(paced_server, "CONNECTIONS_AT_ONCE", 1)
    order: list[int] = []

    async def check() -> None:
        listener = LimitedListener("127.0.0.1", 0, 100, 100)
        server, port = PacedServer(listener, Greeting), listener.getsockname()[1]

        async def come(number: int) -> None:
            assert await greeted(port, "127.0.1.1") == b"!"
            order.append(number)

        comings = []
        for number in range(6):
            comings.append(asyncio.ensure_future(come(number)))
            while len(listener._open) + len(order) <= number:
                await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*comings), SECONDS)
        server.close()

    asyncio.run(check())
    assert order == sorted(order)


@pytest.mark.parametrize("is_paced", [True, False], ids=["paced", "not paced"])
@pytest.mark.parametrize("turns", range(5))
def test_a_server_that_is_closed_ends_every_connection_it_has_accepted(
    is_paced: bool, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paced_server, "CONNECTIONS_PER_SECOND", 1e-6)
    monkeypatch.setattr(paced_server, "CONNECTIONS_AT_ONCE", 3)
    accepted: list[LimitedConnection] = []

    class Noting(LimitedListener):
        def accept(self) -> tuple[LimitedConnection, Any]:
            connection, address = super().accept()
            accepted.append(connection)
            return connection, address

    async def check() -> None:
        listener = Noting("127.0.0.1", 0, 100, 100)
        server, port = PacedServer(listener, Greeting, is_paced), listener.getsockname()[1]
        with ExitStack() as stack:
            for _ in range(6):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), SECONDS))
            while len(accepted) < 6:
                await asyncio.sleep(0)
            for _ in range(turns):  # of the loop, so that each is begun with more or less
                await asyncio.sleep(0)
            server.close()
        while any(connection.fileno() >= 0 for connection in accepted):
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(check(), SECONDS))
