"""The bodies of requests of `samara client serve`: how much one may hold, and how long it takes."""

import asyncio

from starlette.requests import ClientDisconnect, Request

from samara.devices.live.http_requests import MAX_BODY_BYTES
from samara.shared.http.guard import RequestError

BODY_SECONDS = 30.0
"""Longest time in which a body arrives."""


async def read_body(request: Request) -> bytes:
    """Return the body of a request.

    Raises:
        RequestError: if it is not said to be JSON, is too large, or does not arrive in time.
    """
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(415, "send JSON, with Content-Type: application/json")
    length = request.headers.get("content-length", "0")
    too_large = RequestError(413, f"the body is larger than {MAX_BODY_BYTES:,} bytes")
    if not length.isdecimal() or int(length[:20]) > MAX_BODY_BYTES:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    raise too_large
    except TimeoutError:
        raise RequestError(408, f"the body did not arrive in {BODY_SECONDS:.0f} s") from None
    except ClientDisconnect:
        raise RequestError(400, "the connection ended before the body did") from None
    return bytes(body)
