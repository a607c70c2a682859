"""Flower's SuperLink, with its control and runtime APIs for this machine only.

A SuperLink serves three things on one port: SuperNodes (fleet), whoever starts runs and registers
keys (control), and the processes that run apps (runtime). Without an account service Flower lets
anybody use the last two, and a run is code that this machine and every device execute. So
``python -m server.superlink`` is ``flower-superlink`` with a door before it.
"""

import ipaddress
import logging
from functools import partial
from typing import Any

DOOR_PATH = "/samara/door"
"""Answered by the door alone: who gets an answer knows that it is there."""
_OPEN_PATHS = ("/v1/fleet/", "/health", DOOR_PATH)

log = logging.getLogger("samara.superlink")


def is_open_to(host: str, path: str) -> bool:
    """Whether a peer may ask for a path: devices for theirs, this machine for everything."""
    if path.startswith(_OPEN_PATHS):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


class Door:
    """ASGI middleware that refuses the paths which are not for the peer."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer 403, or hand the request on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        host, path = (scope.get("client") or ("",))[0], scope["path"]
        if path != DOOR_PATH and is_open_to(host, path):
            await self._app(scope, receive, send)
            return
        status = 204 if path == DOOR_PATH else 403
        if status == 403:
            log.warning("%s asked for %s, which is for this machine only: refused", host, path)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def _serve_behind_the_door(serve: Any, app: Any, **settings: Any) -> None:
    serve(Door(app), **settings)


def main() -> None:
    """Run ``flower-superlink`` with the arguments of this process."""
    import uvicorn
    from flwr.superlink.cli import flower_superlink

    uvicorn.run = partial(_serve_behind_the_door, uvicorn.run)
    flower_superlink()


if __name__ == "__main__":
    main()
