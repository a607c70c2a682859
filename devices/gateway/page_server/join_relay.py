"""Relay of a browser's join requests to the server.

A browser cannot send such requests to the server itself: the page may only use the gateway's
origin, and the browser does not know the server's certificate authority.
"""

import asyncio
import logging

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from samara.devices.gateway.admission import MAX_ASKED, NEW_KEYS_PER_MINUTE
from samara.devices.gateway.server_requests import ServerRequests
from samara.shared.errors import DeviceError
from samara.shared.network.invitation import JOIN_PATH, MAX_REQUEST_BYTES
from samara.shared.network.log_budget import LogBudget
from samara.shared.network.rate_limit import RateLimit, network_of

log = logging.getLogger("samara.gateway")

BODY_SECONDS = 10.0
"""Seconds allowed from a request's headers to the end of its body."""
_RETRY_SECONDS = "20"


class JoinRelay:
    """Passes joining requests on to the server, within the rate limit for new keys.

    Args:
        server: client for the server's HTTPS interface; None if the server has no keys.
        lines: limit on log lines about unknown connections; None creates one.
    """

    def __init__(self, server: ServerRequests | None, lines: LogBudget | None = None) -> None:
        self._lines = lines or LogBudget(log)
        self._server = server
        self._asked = 0
        self._requests = RateLimit(NEW_KEYS_PER_MINUTE)

    async def answer(self, request: Request, host: str) -> Response:
        """Return the server's answer to a request below `JOIN_PATH`.

        Args:
            request: request of a browser: GET of a welcome, or POST of a key.
            host: address of the browser.
        """
        if self._server is None:
            return Response(status_code=404)
        if self._asked >= MAX_ASKED or not self._requests.admits(network_of(host)):
            return Response(status_code=429, headers={"retry-after": _RETRY_SECONDS})
        self._asked += 1
        try:
            body = await _read_body(request) if request.method == "POST" else None
            path = request.url.path
            status, answer = await asyncio.to_thread(self._server.ask, request.method, path, body)
        except TimeoutError:
            return Response(status_code=408)
        except ClientDisconnect:
            return Response(status_code=400)
        except _TooLongError:
            return Response(status_code=413)
        except DeviceError as error:
            self._lines.warn("nobody", "can join at present: %s", error)
            return Response(status_code=502)
        finally:
            self._asked -= 1
        return Response(answer, status, media_type="application/json")


class _TooLongError(Exception):
    """Raised if a request's body is too long for a request to join."""


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async with asyncio.timeout(BODY_SECONDS):
        async for part in request.stream():
            body += part
            if len(body) > MAX_REQUEST_BYTES:
                raise _TooLongError
    return bytes(body)


def is_about_joining(method: str, path: str) -> bool:
    """Return whether a request may be passed on: GET of a welcome or POST of a key."""
    if method == "POST":
        return path == JOIN_PATH
    name = path.removeprefix(f"{JOIN_PATH}/")
    return method == "GET" and len(name) == 32 and set(name) <= set("0123456789abcdef")
