"""Flower's SuperLink, with its control and runtime APIs for this machine only.

A SuperLink serves three APIs on one port: the fleet API for SuperNodes, the control API that
starts runs and registers keys, and the runtime API for the processes that run apps. Without an
account service Flower lets anybody use the last two, and a run is code that this machine and every
client execute. ``python -m server.live.superlink`` is ``flower-superlink`` with an `AccessFilter`
in front of it.
"""

import ipaddress
import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

from server.live.server_log import write_server_log
from shared.config import RunConfig

LIVE_VARIABLE = "SAMARA_LIVE"
"""Environment variable of a ServerApp whose clients come and go."""
RUN_ERROR = "the run cannot go on: "
"""The beginning of the text of a ServerApp's exception that would be raised again."""
MAX_BYTES_VARIABLE = "SAMARA_MAX_BYTES"
"""Environment variable with the most bytes of a request of a client."""
FILTER_PATH = "/samara/access-filter"
"""Path that the filter itself answers, which shows that it is in front of the SuperLink."""
_FLEET_PATH, _ACTIVATE_PATH = "/v1/fleet/", "/v1/fleet/activate-node"
_MAX_LOG_LINES = 1000
_OPEN_PATHS = (_FLEET_PATH, "/health", FILTER_PATH)

log = logging.getLogger("samara.server")


def is_allowed(host: str, path: str) -> bool:
    """Return whether a host may request a path: this machine any, others those of the fleet API."""
    if path.startswith(_OPEN_PATHS):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def max_reply_bytes(config: RunConfig) -> int:
    """Return a size in bytes that no sound frame of a client in this run exceeds."""
    return 2**20 + 12 * config.steps * config.queries


class AccessFilter:
    """ASGI middleware that refuses paths which are not for the host, and bodies that are too long.

    Args:
        app: the ASGI app that gets the other requests.
        max_bytes: most bytes of a request to the fleet API, which Flower reads whole before it
            checks the sender's key.
    """

    def __init__(self, app: Any, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes
        self._logged: set[tuple[str, str]] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on to the app, or answer it with 403 or 413."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        host, path = (scope.get("client") or ("",))[0], scope["path"]
        if path != FILTER_PATH and is_allowed(host, path):
            whole = await self._read_body(receive) if path.startswith(_FLEET_PATH) else receive
            if whole:
                await self._app(scope, whole, partial(self._send, host, path, send))
                return
            status = 413
            self._log_once(host, f"sent more than {self._max_bytes} bytes at once: refused")
        elif path == FILTER_PATH:
            status = 204
        else:
            status = 403
            self._log_once(host, f"requested {path}, which is for this machine only: refused")
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def _read_body(self, receive: Any) -> Any:
        """Read a request's body; returns a `receive` that gives it, or None if it is too long."""
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                break
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._max_bytes:
                return None
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_whole() -> Any:
            return parts.pop() if parts else await receive()

        return receive_whole

    async def _send(self, host: str, path: str, send: Any, message: Any) -> None:
        """Send a message of the app's answer, and log which hosts Flower turns away."""
        status = message.get("status", 0)
        is_fleet = path.startswith(_FLEET_PATH)
        if is_fleet and (status == 401 or (status >= 400 and path == _ACTIVATE_PATH)):
            self._log_once(
                host,
                "was rejected: its key is not registered, was revoked, or is connected "
                "already; see `samara server keys list`",
            )
        await send(message)

    def _log_once(self, host: str, event: str) -> None:
        """Log an event of a host, unless it was logged before."""
        if (host, event) not in self._logged and len(self._logged) < _MAX_LOG_LINES:
            self._logged.add((host, event))
            log.warning("%s %s", host, event)


def _serve_filtered(serve: Any, app: Any, **settings: Any) -> None:
    """Call uvicorn's `run` with an `AccessFilter` around the app."""
    # a line for every request of every client would fill the disk
    serve(
        AccessFilter(app, int(os.environ[MAX_BYTES_VARIABLE])), **settings | {"access_log": False}
    )


def main() -> None:
    """Run ``flower-superlink`` with this process's arguments, in the run's folder for Flower."""
    import uvicorn

    from shared.flower_compat import flower_superlink

    uvicorn.run = partial(_serve_filtered, uvicorn.run)
    with write_server_log(Path.cwd().parent):
        flower_superlink()


if __name__ == "__main__":
    main()
