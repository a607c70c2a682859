"""Slow connections to a gateway ("slow loris"), which send a byte now and then, or nothing.

The kinds of connections stop at different points: before TLS, before HTTP/2, within a frame, after
the settings, or within the proof.
"""

import asyncio
import contextlib
import ssl
import struct
import time
from pathlib import Path

MOST_SECONDS = 60.0
"""Seconds after which a connection counts as not closed by the gateway."""
_BETWEEN_BYTES = 1.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _END_HEADERS = 0, 1, 4, 4
_CALL = {
    ":method": "POST",
    ":scheme": "https",
    ":path": "/samara.Gateway/Attach",
    ":authority": "127.0.0.1",
    "content-type": "application/grpc",
    "te": "trailers",
}
_MESSAGE = struct.pack(">BI", 0, 1000)
"""Head of a gRPC message of 1,000 bytes."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return an HTTP/2 frame (RFC 9113, section 4.1)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: str, value: str) -> bytes:
    """Return an HTTP/2 header field without indexing (RFC 7541, section 6.2.2).

    Name and value must be shorter than 127 bytes.
    """
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def call_frame(stream: int) -> bytes:
    """Return the frame that opens a stream, with an odd number, to the gateway's service."""
    return frame(_HEADERS, _END_HEADERS, stream, b"".join(literal(*f) for f in _CALL.items()))


HELLO = _PREFACE + frame(_SETTINGS, 0, 0, b"")
"""First bytes of a client's HTTP/2 connection."""
_CALLED = HELLO + call_frame(1)
KINDS: dict[str, tuple[bool, bytes, bytes]] = {
    "no TLS": (False, b"\x16\x03\x01\x02\x00", b"\1"),
    "no HTTP/2": (True, b"", b""),
    "half a frame": (True, HELLO + frame(_HEADERS, 0, 1, bytes(4096))[:9], b"\0"),
    "no call": (True, HELLO, b""),
    "half a proof": (True, _CALLED + frame(_DATA, 0, 1, _MESSAGE), frame(_DATA, 0, 1, b"\0")),
}
"""Kinds of connections by name. Each has whether TLS is used, first bytes, and bytes each second.
"""


async def held(port: int, kind: str, authority: Path) -> float | None:
    """Hold a connection open, and return the seconds until the gateway ended it, or None."""
    tls, first, then = KINDS[kind]
    context = ssl.create_default_context(cafile=str(authority)) if tls else None
    if context:
        context.set_alpn_protocols(["h2"])
    begun = time.monotonic()
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            writer.write(first)
            trickling = asyncio.create_task(_trickled(writer, then))
            try:
                async with asyncio.timeout(MOST_SECONDS):
                    while await reader.read(2**16):
                        pass
            except TimeoutError:
                return None
            finally:
                trickling.cancel()
        finally:
            writer.close()
    return time.monotonic() - begun


async def _trickled(writer: asyncio.StreamWriter, some: bytes) -> None:
    with contextlib.suppress(OSError):
        while some:
            await asyncio.sleep(_BETWEEN_BYTES)
            writer.write(some)
            await writer.drain()


async def all_held(port: int, count: int, authority: Path) -> dict[str, list[float | None]]:
    """Hold connections of all kinds at the same time; return the results of `held` by kind."""
    kinds = [list(KINDS)[n % len(KINDS)] for n in range(count)]
    ended = await asyncio.gather(*(held(port, kind, authority) for kind in kinds))
    found: dict[str, list[float | None]] = {}
    for kind, seconds in zip(kinds, ended, strict=True):
        found.setdefault(kind, []).append(seconds)
    return found
