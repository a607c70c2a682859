"""A link on loopback that can be cut: a relay of TCP connections, on a loop of its own."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_CHUNK_BYTES = 65_536


class CutLink:
    """A relay to an address.

    Args:
        loop: loop that it runs on.
        target: host and port that connections are passed on to.

    Attributes:
        address: where it is reached, host:port.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, target: tuple[str, int]) -> None:
        self._loop, self._target, self._is_cut = loop, target, False
        self._writers = set[asyncio.StreamWriter]()
        started = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._relay, "127.0.0.1", 0), loop
        )
        host, port = started.result().sockets[0].getsockname()
        self.address = f"{host}:{port}"

    def cut(self) -> None:
        """Break all connections, as a phone that changes its network does, and take no others."""
        self._is_cut = True
        self._loop.call_soon_threadsafe(self._break_all)

    def mend(self) -> None:
        """Take connections again."""
        self._is_cut = False

    def _break_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            other_reader, other_writer = await asyncio.open_connection(*self._target)
        except OSError:  # the gateway's process is gone
            writer.transport.abort()
            return
        both = {writer, other_writer}
        self._writers |= both
        await asyncio.gather(_copy(reader, other_writer), _copy(other_reader, writer))
        self._writers -= both


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes until either side ends."""
    try:
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@contextmanager
def cut_link(host: str, port: int) -> Iterator[CutLink]:
    """A link to an address, whole at first."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield CutLink(loop, (host, port))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
