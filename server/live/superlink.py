"""Flower's SuperLink, with its control and runtime APIs for the processes of this run only.

A SuperLink serves three APIs on one port: the fleet API for SuperNodes, the control API that
starts runs and registers keys, and the runtime API for the processes that run apps. Without an
account service Flower lets anybody use the last two, and a run is code that this machine and every
client execute. ``python -m samara.server.live.superlink`` is ``flower-superlink`` with an
`AccessFilter` in front of it, which wants a secret of whoever uses the control API: a request from
this machine's own address may come from elsewhere, through a forwarder or an SSH tunnel. Flower's
SuperExec, which fetches tasks from the runtime API, signs with the same secret, and the processes
of tasks have tokens of Flower's.
"""

import hmac
import ipaddress
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from samara.server.live.arrivals import ARRIVALS_VARIABLE, Arrivals
from samara.server.live.fleet_filter import FleetFilter, RejectedRequestError
from samara.server.live.invitations import Invitations
from samara.server.live.join_filter import JoinFilter
from samara.server.live.keys import KEYS_VARIABLE, ClientKeys, keys_of_environment
from samara.server.live.node_registration import REGISTRATION_PATH, answer_registration
from samara.server.live.open_requests import OpenRequests
from samara.server.live.server_log import write_server_log
from samara.shared.config import RunConfig
from samara.shared.flower_compat import ConfirmMessageReceivedRequest, PushAppMessagesRequest
from samara.shared.invitation import JOIN_PATH
from samara.shared.log_budget import LogBudget
from samara.shared.rejection import HEADER, RejectionCode
from samara.shared.result import RESULT_FILE

LIVE_VARIABLE = "SAMARA_LIVE"
"""Environment variable of a ServerApp whose clients come and go."""
RUN_ERROR = "the run cannot go on: "
"""The beginning of the text of a ServerApp's exception that would be raised again."""
MAX_BYTES_VARIABLE = "SAMARA_MAX_BYTES"
"""Environment variable with the most bytes of a request of a client."""
SECRET_VARIABLE = "SAMARA_CONTROL_SECRET"
"""Environment variable with the file of the secret that opens the control API."""
SECRET_HEADER = "samara-control-secret"
"""Header of a request to the control API, with the secret."""
FILTER_PATH = "/samara/access-filter"
"""Path that the filter itself answers, which shows that it is in front of the SuperLink."""
_FLEET_PATH, _ACTIVATE_PATH = "/v1/fleet/", "/v1/fleet/activate-node"
_SENT_PATH = "/v1/runtime/push-messages"
_FETCHED_PATH = "/v1/runtime/confirm-message-received"
_WATCHED_PATHS = (_SENT_PATH, _FETCHED_PATH, "/v1/control/start-run")
_OPEN_PATHS = (_FLEET_PATH, JOIN_PATH, "/health", FILTER_PATH)
_NO_SECRET_PATHS = (*_OPEN_PATHS, "/v1/runtime/")

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
    """ASGI middleware that refuses paths which are not for the host, and what no node may send.

    Args:
        app: the ASGI app that gets the other requests.
        max_bytes: most bytes of a request to the fleet API.
        keys: client keys of the run; None lets any node send.
        secret: secret that opens the control API; empty keeps it closed.
        invitations: invitations of the run; None if it has none.
        result: file that exists when the run is finished; None if it never is.
        keep: called with the address of whoever has made a sound request, so that its connection
            makes no room for those of strangers.
        arrived: called when something of a reply has arrived.

    Attributes:
        lines: budget of the log's lines about what is refused.
    """

    def __init__(
        self,
        app: Any,
        max_bytes: int,
        keys: ClientKeys | None = None,
        secret: bytes = b"",
        invitations: Invitations | None = None,
        result: Path | None = None,
        keep: Callable[[Any], None] = lambda address: None,
        arrived: Callable[[], None] = lambda: None,
    ) -> None:
        requests = OpenRequests(max_bytes)
        self._secret = secret
        self._app, self._requests = app, requests
        self.lines, self._keep = LogBudget(log), keep
        self._fleet = FleetFilter(app, max_bytes, keys, requests, result, arrived)
        self._join = JoinFilter(invitations, lines=self.lines)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on to the app, or answer it with an error's status."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        host, path = (scope.get("client") or ("",))[0], scope["path"]
        if path.startswith(JOIN_PATH):
            await self._join(scope, receive, send)
            return
        status, headers, text = 403, list[tuple[bytes, bytes]](), ""
        if path == FILTER_PATH:
            status = 204
        elif not is_allowed(host, path):
            self.lines.warn(host, "requested '%s', which is for this machine only: refused", path)
        elif path.startswith(_FLEET_PATH):
            try:
                await self._fleet(scope, receive, partial(self._send, scope, host, send))
                self._keep(scope["client"])
                return
            except RejectedRequestError as error:
                status = error.status
                if error.code is not None:
                    headers = [_header(HEADER, error.code)]
                self.lines.warn(host, error.reason, *error.details)
        elif not path.startswith(_NO_SECRET_PATHS) and not self._has_secret(scope):
            self.lines.warn(host, "requested '%s' without the secret of this run: refused", path)
        elif path == REGISTRATION_PATH:
            status, text = await answer_registration(self._app, receive)
        else:
            await self._watch(scope, receive, send)
            self._keep(scope["client"])
            return
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": text.encode()})

    def _has_secret(self, scope: Any) -> bool:
        """Return whether a request carries the secret that opens the control API."""
        secret = dict(scope["headers"]).get(SECRET_HEADER.encode(), b"")
        return bool(self._secret) and hmac.compare_digest(secret, self._secret)

    async def _watch(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on a request of this machine, and note what the ServerApp sends and fetches."""
        if scope["path"] not in _WATCHED_PATHS:
            await self._app(scope, receive, send)
            return
        body = bytearray()

        async def receive_watched() -> Any:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        async def send_watched(message: Any) -> None:
            if message.get("status") == 200:
                self._note(scope["path"], bytes(body))
            await send(message)

        await self._app(scope, receive_watched, send_watched)

    def _note(self, path: str, body: bytes) -> None:
        """Keep the table of open requests in step with what Flower has just done."""
        if path == _SENT_PATH:
            self._requests.add(PushAppMessagesRequest.FromString(body))
        elif path == _FETCHED_PATH:
            fetched = ConfirmMessageReceivedRequest.FromString(body)
            self._requests.remove(fetched.message_object_id)
        else:
            self._requests.clear()

    async def _send(self, scope: Any, host: str, send: Any, message: Any) -> None:
        """Send a message of the app's answer, and log whom Flower turns away."""
        status, path = message.get("status", 0), scope["path"]
        is_fleet = path.startswith(_FLEET_PATH)
        if is_fleet and (status == 401 or (status >= 400 and path == _ACTIVATE_PATH)):
            self.lines.warn(
                self._fleet.name_of(scope) or host,
                "was rejected by Flower: its key is connected already, or the server is just "
                "starting",
            )
            connected = _header(HEADER, RejectionCode.CONNECTED)
            message["headers"] = [*message.get("headers", ()), connected]
        await send(message)


def _header(name: str, number: int) -> tuple[bytes, bytes]:
    return name.encode(), str(int(number)).encode()


def _serve_filtered(serve: Any, app: Any, **settings: Any) -> None:
    """Call uvicorn's `run` with an `AccessFilter` around the app, and limits of connections."""
    from samara.server.live.connection_limits import MAX_HEAD_BYTES, LimitedLoop, LimitedProtocol

    keys = keys_of_environment()
    limits = {"http": LimitedProtocol, "h11_max_incomplete_event_size": MAX_HEAD_BYTES}
    limits |= {"loop": f"{LimitedLoop.__module__}:{LimitedLoop.__name__}"}
    # a line for every request, or for each that is no HTTP, would fill the disk
    limits |= {"ws": "none", "access_log": False, "log_level": "error"}
    secret = Path(os.environ[SECRET_VARIABLE]).read_bytes()
    max_bytes = int(os.environ[MAX_BYTES_VARIABLE])
    invitations = Invitations(Path(os.environ[KEYS_VARIABLE]).parent) if keys else None
    result = Path.cwd().parent / RESULT_FILE
    keep = LimitedLoop.keep
    arrived = Arrivals(Path(os.environ[ARRIVALS_VARIABLE])).add
    access = AccessFilter(app, max_bytes, keys, secret, invitations, result, keep, arrived)
    LimitedLoop.lines = access.lines
    try:
        serve(access, **settings | limits)
    finally:
        access.lines.close()


def main() -> None:
    """Run ``flower-superlink`` in the run's folder for Flower, and ``flower-superexec`` beside it.

    The arguments are those of the former, ``--``, and those of the latter. Left to itself, the
    SuperLink would start a SuperExec without a secret, and hand out tasks to anybody.
    """
    import uvicorn

    from samara.shared.flower_compat import flower_superlink

    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    uvicorn.run = partial(_serve_filtered, uvicorn.run)
    separator = sys.argv.index("--")
    superexec = ["flower-superexec", *sys.argv[separator + 1 :], "--parent-pid", str(os.getpid())]
    del sys.argv[separator:]
    subprocess.Popen(superexec, stdin=subprocess.DEVNULL)  # ends with this process
    with write_server_log(Path.cwd().parent):
        flower_superlink()


if __name__ == "__main__":
    main()
