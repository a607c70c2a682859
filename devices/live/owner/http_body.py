"""Request bodies of `samara client serve`, limited in size and time."""

import asyncio

from starlette.requests import ClientDisconnect, Request

from samara.devices.live.owner.http_requests import MAX_BODY_BYTES
from samara.shared.network.http.guard import RequestError

BODY_SECONDS = 30.0
"""Time limit in seconds for a body to arrive."""


async def read_body(request: Request) -> bytes:
    """Return the body of a request.

    Raises:
        RequestError: if the body is not declared as JSON, is too large, or does not arrive in time.
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
        raise RequestError(400, "the connection ended before the whole body arrived") from None
    return bytes(body)
