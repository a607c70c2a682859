"""Flower's SuperLink, with its control and runtime APIs for this machine only.

A SuperLink serves three things on one port: SuperNodes (fleet), whoever starts runs and registers
keys (control), and the processes that run apps (runtime). Without an account service Flower lets
anybody use the last two, and a run is code that this machine and every client execute. So
``python -m server.live.superlink`` is ``flower-superlink`` with a door before it.
"""

import ipaddress
import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

from server.live.journal import journal
from shared.config import RunConfig

MOST_BYTES_VARIABLE = "SAMARA_MOST_BYTES"
"""Environment variable: most bytes of a request of a client."""
DOOR_PATH = "/samara/door"
"""Answered by the door alone: who gets an answer knows that it is there."""
_FLEET_PATH, _ACTIVATE_PATH = "/v1/fleet/", "/v1/fleet/activate-node"
_MOST_TOLD = 1000
_OPEN_PATHS = (_FLEET_PATH, "/health", DOOR_PATH)

log = logging.getLogger("samara.server")


def is_open_to(host: str, path: str) -> bool:
    """Whether a peer may ask for a path: clients for theirs, this machine for everything."""
    if path.startswith(_OPEN_PATHS):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def most_answer_bytes(config: RunConfig) -> int:
    """More than a sound answer of a client to anything in a run ever has, as a frame."""
    return 2**20 + 12 * config.steps * config.queries


class Door:
    """ASGI middleware that refuses paths which are not for the peer, and bodies that are too long.

    Args:
        app: what is behind it.
        most_bytes: of a body; Flower reads it whole before it looks whose it is.
    """

    def __init__(self, app: Any, most_bytes: int) -> None:
        self._app, self._most_bytes = app, most_bytes
        self._told: set[tuple[str, str]] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer 403, or hand the request on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        host, path = (scope.get("client") or ("",))[0], scope["path"]
        if path != DOOR_PATH and is_open_to(host, path):
            heard = await self._heard(receive) if path.startswith(_FLEET_PATH) else receive
            if heard:
                await self._app(scope, heard, partial(self._watched, host, path, send))
                return
            status = 413
            self._tell(host, f"sent more than {self._most_bytes} bytes at once: refused")
        elif path == DOOR_PATH:
            status = 204
        else:
            status = 403
            self._tell(host, f"asked for {path}, which is for this machine only: refused")
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def _heard(self, receive: Any) -> Any:
        """What gives a request's body, which is here already; None if it is too long."""
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                break
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._most_bytes:
                return None
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def heard() -> Any:
            return parts.pop() if parts else await receive()

        return heard

    async def _watched(self, host: str, path: str, send: Any, message: Any) -> None:
        """Hand an answer on, and say whom Flower turned away."""
        status = message.get("status", 0)
        is_fleet = path.startswith(_FLEET_PATH)
        if is_fleet and (status == 401 or (status >= 400 and path == _ACTIVATE_PATH)):
            self._tell(
                host,
                "was turned away: its key is not registered, was revoked, or is connected "
                "already; see `samara server keys list`",
            )
        await send(message)

    def _tell(self, host: str, what: str) -> None:
        """Log once what a peer does again and again."""
        if (host, what) not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add((host, what))
            log.warning("%s %s", host, what)


def _serve_behind_the_door(serve: Any, app: Any, **settings: Any) -> None:
    # a line for every request of every client would fill the disk
    serve(Door(app, int(os.environ[MOST_BYTES_VARIABLE])), **settings | {"access_log": False})


def main() -> None:
    """Run ``flower-superlink`` with the arguments of this process, in a run's folder for Flower."""
    import uvicorn

    from shared.flower_compat import flower_superlink

    uvicorn.run = partial(_serve_behind_the_door, uvicorn.run)
    with journal(Path.cwd().parent):
        flower_superlink()


if __name__ == "__main__":
    main()
