"""The end of connections that are passed on to gRPC."""

import asyncio
import socket

import pytest

from samara.devices.gateway import passed_connections
from samara.devices.gateway.passed_connections import PassedConnections
from samara.shared.network.http.limited_listener import LimitedListener

SECONDS = 30.0
MORE_THAN_SOCKETS_HOLD = 64 * 2**20


@pytest.mark.parametrize("sent", [0, 5, MORE_THAN_SOCKETS_HOLD])
def test_connections_end_also_if_their_other_ends_take_no_bytes(
    sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passed_connections, "_LAST_SECOND", 0.01)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(sent))
        await reader.read()
        writer.close()

    async def check() -> None:
        grpc = await asyncio.start_server(answer, "127.0.0.1", 0)
        listener = LimitedListener("127.0.0.1", 0, 9, 9)
        connections = PassedConnections(listener, grpc.sockets[0].getsockname()[1])
        with socket.create_connection(listener.getsockname()[:2], SECONDS):
            while not connections.by_port:
                await asyncio.sleep(0)
            connections.close()
            await connections.end()
            assert not connections.open
            assert not connections.by_port
        grpc.close()
        await grpc.wait_closed()

    asyncio.run(asyncio.wait_for(check(), SECONDS))
