"""Strangers at one address who hold unproven streams at a gateway, and open them again."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from benchmarks.faults.slow_connections import HELLO, call_frame

SECONDS = 20.0
STREAMS = 192
CALLS_OF_CONNECTION = 4


def grpc_calls(port: int) -> bytes:
    """The bytes of a connection that opens four streams over gRPC, in plain text."""
    return HELLO + b"".join(call_frame(1 + 2 * n) for n in range(CALLS_OF_CONNECTION))


def web_socket_call(port: int) -> bytes:
    """The bytes of a connection that opens a stream by WebSocket, in plain text."""
    here = f"127.0.0.1:{port}"
    fields = {
        "Host": here,
        "Origin": f"http://{here}",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "samara.phone.1",
    }
    lines = ["GET /stream HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


@contextmanager
def strangers(
    port: int, said: Callable[[int], bytes], connections: int, source: str
) -> Iterator[None]:
    """Hold connections of one address, each of which is opened again as soon as it ends.

    The block begins after each connection has been answered or ended once.
    """
    answered, tried = set[int](), threading.Event()
    loop = asyncio.new_event_loop()

    async def hold(number: int) -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, local_addr=(source, 0)
                )
                try:
                    writer.write(said(port))
                    more = await reader.read(2**16)
                    answered.add(number)
                    if len(answered) == connections:
                        tried.set()
                    while more:
                        more = await reader.read(2**16)
                finally:
                    writer.close()

    async def hold_all() -> None:
        await asyncio.gather(*(hold(number) for number in range(connections)))

    held = asyncio.ensure_future(hold_all(), loop=loop)

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(held)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert tried.wait(SECONDS), f"{len(answered)} of {connections} connections were answered"
        yield
    finally:
        loop.call_soon_threadsafe(held.cancel)
        thread.join()
