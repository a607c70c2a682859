"""Flower's SuperLink, with its control and runtime APIs restricted to the processes of this run.

A SuperLink serves three APIs on one port: the fleet API for SuperNodes, the control API for
starting runs and registering keys, and the runtime API for the processes that run apps. Without an
account service, Flower lets anybody use the control and runtime APIs. Anybody could then start a
run, and so execute code on this machine and every client.

``python -m samara.server.live.superlink`` is ``flower-superlink`` behind an `AccessFilter`. The
filter requires a secret for the control API. A request from this machine's address is not enough,
because a forwarder or an SSH tunnel may pass on requests of other machines. Flower's SuperExec,
which fetches tasks from the runtime API, signs its requests with the same secret. The processes of
tasks use tokens that Flower creates.
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
from samara.shared.flower_compat import ConfirmMessageReceivedRequest, PushAppMessagesRequest
from samara.shared.network.invitation import JOIN_PATH
from samara.shared.network.log_budget import LogBudget
from samara.shared.network.rejection import HEADER, RejectionCode
from samara.shared.results.result import RESULT_FILE
from samara.shared.settings.config import RunConfig

LIVE_VARIABLE = "SAMARA_LIVE"
"""Environment variable that marks the ServerApp of a live run."""
RUN_ERROR = "the run cannot continue: "
"""First words of the message of a ServerApp's error that a restart cannot cure."""
MAX_BYTES_VARIABLE = "SAMARA_MAX_BYTES"
"""Environment variable with the largest size of a client's request, in bytes."""
SECRET_VARIABLE = "SAMARA_CONTROL_SECRET"
"""Environment variable with the path of the control API's secret."""
SECRET_HEADER = "samara-control-secret"
"""Header that carries the secret of a control API request."""
FILTER_PATH = "/samara/access-filter"
"""Path that only the filter answers; an answer proves that the SuperLink is behind a filter."""
_FLEET_PATH, _ACTIVATE_PATH = "/v1/fleet/", "/v1/fleet/activate-node"
_SENT_PATH = "/v1/runtime/push-messages"
_FETCHED_PATH = "/v1/runtime/confirm-message-received"
_WATCHED_PATHS = (_SENT_PATH, _FETCHED_PATH, "/v1/control/start-run")
_OPEN_PATHS = (_FLEET_PATH, JOIN_PATH, "/health", FILTER_PATH)
_NO_SECRET_PATHS = (*_OPEN_PATHS, "/v1/runtime/")

log = logging.getLogger("samara.server")


def is_allowed(host: str, path: str) -> bool:
    """Return whether a host may request a path.

    Hosts other than this machine may request only the fleet API, the paths for joining a run, and
    the paths that tell whether the server is alive.

    Args:
        host: IP address of the sender.
        path: path of the request.
    """
    if path.startswith(_OPEN_PATHS):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def max_reply_bytes(config: RunConfig) -> int:
    """Return the largest size, in bytes, of a valid client frame of this run."""
    return 2**20 + 12 * config.steps * config.queries


class AccessFilter:
    """ASGI middleware that refuses forbidden paths and invalid requests.

    Args:
        app: ASGI app that receives the other requests.
        max_bytes: maximum size of a request to the fleet API, in bytes.
        keys: client keys of the run; None accepts any node.
        secret: secret of the control API; empty keeps the API closed.
        invitations: invitations of the run; None without invitations.
        result: file that exists once the run is finished; None for a run that never finishes.
        keep: callback with the sender's address, after a valid request. The connection is then
            never closed to make room for unknown senders.
        arrived: callback after each stored part of a reply.

    Attributes:
        lines: budget of log lines about refusals.
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
        """Pass a request on to the app, or answer it with an error status."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        host = (scope.get("client") or ("",))[0]
        path = scope["path"]
        if path.startswith(JOIN_PATH):
            await self._join(scope, receive, send)
            return
        status = 403
        headers = list[tuple[bytes, bytes]]()
        text = ""
        if path == FILTER_PATH:
            status = 204
        elif not is_allowed(host, path):
            self.lines.warn(
                host, "requested '%s', which only this machine may request: refused", path
            )
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
        """Return whether a request carries the secret of the control API."""
        secret = dict(scope["headers"]).get(SECRET_HEADER.encode(), b"")
        return bool(self._secret) and hmac.compare_digest(secret, self._secret)

    async def _watch(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on a request of this machine, and record the ServerApp's requests and fetches."""
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
        """Update the open requests after Flower has processed the ServerApp's request."""
        if path == _SENT_PATH:
            self._requests.add(PushAppMessagesRequest.FromString(body))
        elif path == _FETCHED_PATH:
            fetched = ConfirmMessageReceivedRequest.FromString(body)
            self._requests.remove(fetched.message_object_id)
        else:
            self._requests.clear()

    async def _send(self, scope: Any, host: str, send: Any, message: Any) -> None:
        """Send a part of the app's answer, and log a client that Flower has refused."""
        status = message.get("status", 0)
        path = scope["path"]
        is_fleet = path.startswith(_FLEET_PATH)
        if is_fleet and (status == 401 or (status >= 400 and path == _ACTIVATE_PATH)):
            self.lines.warn(
                self._fleet.name_of(scope) or host,
                "was rejected by Flower: its key is already connected, or the server has just "
                "started",
            )
            connected = _header(HEADER, RejectionCode.CONNECTED)
            message["headers"] = [*message.get("headers", ()), connected]
        await send(message)


def _header(name: str, number: int) -> tuple[bytes, bytes]:
    return name.encode(), str(int(number)).encode()


def _serve_filtered(serve: Any, app: Any, **settings: Any) -> None:
    """Call uvicorn's `run` with an `AccessFilter` around the app and with connection limits."""
    from samara.server.live.connection_limits import MAX_HEAD_BYTES, LimitedLoop, LimitedProtocol

    keys = keys_of_environment()
    limits = {"http": LimitedProtocol, "h11_max_incomplete_event_size": MAX_HEAD_BYTES}
    limits |= {"loop": f"{LimitedLoop.__module__}:{LimitedLoop.__name__}"}
    # a log line for every request or malformed connection would fill the disk
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
    """Start ``flower-superexec`` and run ``flower-superlink``, in the run's folder for Flower.

    The command line consists of the arguments of ``flower-superlink``, ``--``, and the arguments of
    ``flower-superexec``. A SuperExec that the SuperLink starts itself has no secret, and the
    SuperLink then gives tasks to any process.
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
