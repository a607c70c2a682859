"""Requests of devices that join by an invitation: limits, parsing and answers.

Anybody who reaches the server can send such requests. Their bytes, time and number are therefore
limited before the server looks anything up.
"""

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import Callable
from typing import Any

from samara.server.live.invitations import Invitations, JoinError
from samara.shared.errors import InvitationError
from samara.shared.network.invitation import JOIN_PATH, KEYS_PATH, MAX_REQUEST_BYTES, JoinRequest
from samara.shared.network.log_budget import LogBudget
from samara.shared.network.rate_limit import RateLimit, network_of

MAX_REQUESTS = 30
"""Maximum number of requests per network and minute; a board needs two, and a phone four."""
BODY_SECONDS = 10.0
"""Maximum time from a request's headers to the end of its body, in seconds."""
MAX_DOWNLOADS = 8
"""Maximum number of simultaneous program downloads; one invitation has at most one download."""
PIECE_BYTES = 2**20
PIECE_SECONDS = 60.0
"""Time limit for one piece of a program, in seconds; a slower device resumes with a new request."""
_WELCOME = re.compile(rf"{JOIN_PATH}/([0-9a-f]{{32}})")
_PROGRAM = re.compile(rf"{JOIN_PATH}/([0-9a-f]{{32}})/([0-9a-f]{{64}})")
_KEY = re.compile(rf"{KEYS_PATH}/([0-9a-f]{{64}})")
_FROM = re.compile(rb"bytes=([0-9]{1,15})-")

log = logging.getLogger("samara.server")


class JoinFilter:
    """ASGI app that answers devices with an invitation.

    Args:
        invitations: invitations of the run; None if clients join without a key.
        clock: function that returns monotonic seconds.
        lines: budget of log lines about refusals; None creates one.
    """

    def __init__(
        self,
        invitations: Invitations | None,
        clock: Callable[[], float] = time.monotonic,
        lines: LogBudget | None = None,
    ) -> None:
        self._invitations, self._lines = invitations, lines or LogBudget(log)
        self._requests = RateLimit(MAX_REQUESTS, clock)
        self._downloads: dict[str, object] = {}  # latest download of each invitation

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request; a refusal is an HTTP status without a body."""
        host = (scope.get("client") or ("",))[0]
        try:
            if not self._requests.admits(network_of(host)):
                raise JoinError(429, f"sent over {MAX_REQUESTS} requests in a minute")
            if program := _PROGRAM.fullmatch(scope["path"]):
                await self._send_program(scope, send, host, *program.groups())
                return
            status, body = 200, await self._answer(scope, receive, host)
        except JoinError as error:
            status = error.status
            body = b""
            self._lines.warn(
                host, f"could not join by an invitation: {error.reason}", *error.details
            )
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Any, receive: Any, host: str) -> bytes:
        invitations = self._all_invitations()
        method = scope["method"]
        path = scope["path"]
        if method == "GET" and (welcome := _WELCOME.fullmatch(path)):
            return invitations.welcome(welcome[1])
        if method == "GET" and (key := _KEY.fullmatch(path)):
            invitations.check_key(key[1])
            return b""
        if method != "POST" or path != JOIN_PATH:
            raise JoinError(404, "requested an unknown path")
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _read_body(receive)
            name = invitations.redeem(JoinRequest.decode(body))
        except TimeoutError:
            raise JoinError(
                408, f"did not send a whole request within {BODY_SECONDS:g} s"
            ) from None
        except InvitationError as error:
            raise JoinError(400, "%s", str(error)) from error
        log.warning("%s has joined as %s by an invitation", host, name)
        return json.dumps({"name": name, **invitations.names()}).encode()

    def _all_invitations(self) -> Invitations:
        if self._invitations is None:
            raise JoinError(404, "asked to join a run without keys, which needs no invitation")
        return self._invitations

    async def _send_program(
        self, scope: Any, send: Any, host: str, identifier: str, digest: str
    ) -> None:
        """Send a program or manifest, starting at the byte that `Range` names.

        A new request ends the earlier request of the same invitation. Each invitation therefore
        has at most one transfer. A device whose connection broke need not wait for the end of its
        earlier request.

        Raises:
            JoinError: if the file cannot be sent; no part of the answer has been sent before.
        """
        if scope["method"] != "GET":
            raise JoinError(404, "requested an unknown path")
        program = self._all_invitations().program_file(identifier, digest)
        if identifier not in self._downloads and len(self._downloads) >= MAX_DOWNLOADS:
            raise JoinError(503, f"asked for a program during {MAX_DOWNLOADS} other transfers")
        named = _FROM.fullmatch(dict(scope["headers"]).get(b"range", b"bytes=0-"))
        download = self._downloads[identifier] = object()
        try:
            with program.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                start = int(named[1]) if named else 0
                if start > size:
                    raise JoinError(416, "asked for bytes after the end of a program")
                file.seek(start)
                headers = [(b"content-length", str(size - start).encode())]
                status = 206 if start else 200
                await send({"type": "http.response.start", "status": status, "headers": headers})
                while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                    if self._downloads.get(identifier) is not download:
                        return
                    more = {"type": "http.response.body", "body": piece, "more_body": True}
                    async with asyncio.timeout(PIECE_SECONDS):
                        await send(more)
                await send({"type": "http.response.body", "body": b""})
        except FileNotFoundError:
            raise JoinError(404, "asked for a program that the run no longer has") from None
        except TimeoutError:
            self._lines.warn(host, "received a program too slowly, so the transfer was ended")
        finally:
            if self._downloads.get(identifier) is download:
                del self._downloads[identifier]


async def _read_body(receive: Any) -> bytes:
    """Return a request's body.

    Raises:
        JoinError: if the body is too long, or the sender disconnects early.
    """
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise JoinError(400, "disconnected before the end of a request")
        body += message.get("body", b"")
        if len(body) > MAX_REQUEST_BYTES:
            raise JoinError(413, f"sent more than {MAX_REQUEST_BYTES} bytes")
        if not message.get("more_body", False):
            return bytes(body)
