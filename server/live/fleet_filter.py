"""A filter that rejects nodes' requests by sender, size, duration and stored objects.

Flower has no such limits. It reads the whole body of a request before it checks the sender's key,
logs every unreadable request, and stores pushed objects without a check.
"""

import asyncio
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from samara.server.live.keys import ClientKey, ClientKeys
from samara.server.live.open_requests import OpenRequests, PushError, UnknownRequestError
from samara.server.live.told_clients import TOLD_FILE, ToldClients
from samara.shared.flower_compat import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    PushMessagesRequest,
    PushObjectRequest,
)
from samara.shared.network.rejection import RejectionCode
from samara.shared.protocol.signing import is_signed_by

MEDIA_TYPE = b"application/protobuf"
MAX_HEADER_BYTES = 8192
"""Maximum size of a request's header names and values, in bytes."""
BODY_SECONDS = 30.0
"""Maximum time from a request's headers to the end of its body, in seconds."""
MAX_REQUESTS = 16
"""Maximum number of simultaneous requests of one key."""
MAX_BYTES_IN_FLIGHT = 32 * 2**20
"""Maximum size of the bodies of all requests in progress, in bytes, over all keys."""
SENDERS_AT_ONCE = 8
"""Number of keys that can use their full share of `MAX_BYTES_IN_FLIGHT` at the same time."""
_MAX_AGE, _MAX_AHEAD = 305.0, 5.0
"""Maximum age of a request's signed time, and its maximum lead, in seconds, as in Flower."""
_ANNOUNCE, _OBJECT = "/v1/fleet/push-messages", "/v1/fleet/push-object"
_PATHS = {
    f"/v1/fleet/{name}"
    for name in (
        *("register-node", "activate-node", "deactivate-node", "unregister-node"),
        *("send-node-heartbeat", "pull-messages", "push-messages", "get-run", "get-fab"),
        *("push-object", "pull-object", "confirm-message-received"),
    )
}
Headers = dict[bytes, bytes]


class RejectedRequestError(Exception):
    """Raised for a request that must not be passed on to Flower.

    Args:
        status: HTTP status of the answer.
        reason: reason for the server's log, with ``%s`` for each detail.
        details: values for the ``%s``, such as the name of a key.
        code: reason for the sender; None if the sender must not know the reason.
    """

    def __init__(
        self, status: int, reason: str, *details: str, code: RejectionCode | None = None
    ) -> None:
        super().__init__(reason % details)
        self.status, self.reason, self.details, self.code = status, reason, details, code


class FleetFilter:
    """ASGI middleware for the fleet API, the part of Flower's SuperLink open to other hosts.

    Args:
        app: ASGI app that receives valid requests.
        max_bytes: maximum size of a request in bytes.
        keys: client keys of the run; None accepts any node.
        requests: open requests of the server, to which nodes may reply.
        result: file that exists once the run is finished; None for a run that never finishes.
        arrived: callback after each stored part of a reply.
    """

    def __init__(
        self,
        app: Any,
        max_bytes: int,
        keys: ClientKeys | None,
        requests: OpenRequests,
        result: Path | None = None,
        arrived: Callable[[], None] = lambda: None,
    ) -> None:
        self._app, self._max_bytes, self._requests = app, max_bytes, requests
        self._arrived = arrived
        self._result = result
        self._told = ToldClients(result.with_name(TOLD_FILE)) if result else None
        self._keys = keys
        self._in_flight = 0
        self._max_in_flight = max(MAX_BYTES_IN_FLIGHT, SENDERS_AT_ONCE * max_bytes)
        self._senders = Counter[bytes]()  # number of open requests by key
        self._bytes = Counter[bytes]()  # bytes of request bodies by key

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a valid request on to Flower.

        Raises:
            RejectedRequestError: if the request is invalid; no answer has been sent yet.
        """
        sender = self._check_head(scope)
        with self._count_request(sender), self._count_bytes(sender) as held:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    body = await self._read_body(receive, sender, held)
            except TimeoutError:
                reason = f"did not send a request's body within {BODY_SECONDS:g} s"
                raise RejectedRequestError(408, reason) from None
            if body is not None:
                await self._pass_on(scope, body, receive, send)

    def name_of(self, scope: Any) -> str:
        """Return the name of the key that signed an accepted request; empty without a key."""
        key = self._keys.find(_sender_of(dict(scope["headers"]))) if self._keys else None
        return key.name if key else ""

    def _check_head(self, scope: Any) -> bytes:
        """Return the public key of a request's sender; empty if nodes need no key.

        Raises:
            RejectedRequestError: if the request is invalid, or the run is finished.
        """
        if scope["path"] not in _PATHS or scope["method"] != "POST":
            raise RejectedRequestError(404, "requested an unknown path of the fleet API")
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            raise RejectedRequestError(431, f"sent over {MAX_HEADER_BYTES} bytes of headers")
        headers: Headers = dict(scope["headers"])
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != MEDIA_TYPE:
            raise RejectedRequestError(415, "sent a body that is not one of Flower's messages")
        if int(headers.get(b"content-length", b"0")) > self._max_bytes:
            raise RejectedRequestError(413, self._too_long)
        public_key = _sender_of(headers)
        if self._keys is not None:
            _check_key(headers, public_key, self._keys.find(public_key))
        if self._told is not None and self._result is not None and self._result.exists():
            self._told.add(public_key)
            reason = "was told that the run is finished"
            raise RejectedRequestError(410, reason, code=RejectionCode.FINISHED)
        return public_key if self._keys is not None else b""

    @property
    def _too_long(self) -> str:
        return f"sent more than {self._max_bytes} bytes at once: refused"

    @contextmanager
    def _count_request(self, sender: bytes) -> Iterator[None]:
        """Count a request as an open request of its key until the ``with`` block ends."""
        if sender and self._senders[sender] >= MAX_REQUESTS:
            raise RejectedRequestError(503, f"sent over {MAX_REQUESTS} requests at once")
        self._senders[sender] += 1
        try:
            yield
        finally:
            self._senders[sender] -= 1
            if not self._senders[sender]:
                del self._senders[sender]

    @contextmanager
    def _count_bytes(self, sender: bytes) -> Iterator[bytearray]:
        """Yield a buffer for a request's body; its bytes count as held until the block ends."""
        held = bytearray()
        try:
            yield held
        finally:
            self._in_flight -= len(held)
            self._bytes[sender] -= len(held)
            if not self._bytes[sender]:
                del self._bytes[sender]

    async def _read_body(self, receive: Any, sender: bytes, held: bytearray) -> bytes | None:
        """Read a request's body; return None if the sender disconnects early."""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            part = message.get("body", b"")
            if len(held) + len(part) > self._max_bytes:
                raise RejectedRequestError(413, self._too_long)
            share = self._max_in_flight // SENDERS_AT_ONCE
            if sender and self._bytes[sender] + len(part) > share:
                raise RejectedRequestError(
                    503, "sent a request while its open requests filled its memory share"
                )
            if self._in_flight + len(part) > self._max_in_flight:
                raise RejectedRequestError(503, "sent a request while other nodes used all memory")
            self._in_flight += len(part)
            self._bytes[sender] += len(part)
            held += part
            if not message.get("more_body", False):
                return bytes(held)

    async def _pass_on(self, scope: Any, body: bytes, receive: Any, send: Any) -> None:
        """Pass a request on to Flower, and record the objects that it stored."""
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_whole() -> Any:
            return parts.pop() if parts else await receive()

        try:
            pushed = self._check_push(scope["path"], body)
        except PushError as error:
            raise RejectedRequestError(400, str(error)) from error
        except UnknownRequestError:
            # Flower also answers with an empty message if it has stored nothing
            headers = [(b"content-type", MEDIA_TYPE), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return

        async def send_watched(message: Any) -> None:
            if message.get("status") == 200:  # the node may push again once it has the answer
                self._add_push(pushed)
            await send(message)

        await self._app(scope, receive_whole, send_watched)

    def _add_push(self, pushed: PushMessagesRequest | PushObjectRequest | None) -> None:
        if isinstance(pushed, PushMessagesRequest):
            self._requests.add_announcement(pushed)
        elif isinstance(pushed, PushObjectRequest):
            self._requests.add_object(pushed)
        if pushed is not None:
            self._arrived()

    def _check_push(self, path: str, body: bytes) -> PushMessagesRequest | PushObjectRequest | None:
        """Return the push that a request asks Flower to store; None for other requests.

        Raises:
            PushError: if no honest node sends such a push.
            UnknownRequestError: if the push answers no open request.
        """
        kinds: dict[str, Any] = {_ANNOUNCE: PushMessagesRequest, _OBJECT: PushObjectRequest}
        if path not in kinds:
            return None
        try:
            pushed: PushMessagesRequest | PushObjectRequest = kinds[path].FromString(body)
        except Exception as error:  # protobuf's errors differ between its implementations
            raise PushError("sent bytes that are not a message of Flower") from error
        if isinstance(pushed, PushMessagesRequest):
            self._requests.check_announcement(pushed)
        else:
            self._requests.check_object(pushed)
        return pushed


def _check_key(headers: Headers, public_key: bytes, key: ClientKey | None) -> None:
    """Check that a request has a current signature of a key that may take part.

    Raises:
        RejectedRequestError: if the request has no such signature. A sender without a valid
            signature does not learn the reason.
    """
    details: tuple[str, ...] = ()
    if key is None:
        reason = "its key is not registered here; see `samara server status --keys`"
        code = RejectionCode.UNREGISTERED
    elif (late := _signed_seconds_ago(headers, public_key)) is None:
        reason = "a request in the name of %s is not signed with its key"
        details = (key.name,)
        code = RejectionCode.SIGNATURE
    elif key.revoked:
        reason = "the key %s was revoked on %s"
        details = (key.name, str(key.revoked))
        code = RejectionCode.REVOKED
    elif not -_MAX_AHEAD < late < _MAX_AGE:
        reason = "the clock of %s differs from the clock of this machine"
        details = (key.name,)
        code = RejectionCode.CLOCK
    else:
        return
    raise RejectedRequestError(401, f"was rejected: {reason}", *details, code=code)


def _sender_of(headers: Headers) -> bytes:
    """Return the public key in a request's headers; empty if it is invalid or missing."""
    try:
        return b64decode(headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER.encode(), b""), validate=True)
    except ValueError:
        return b""


def _signed_seconds_ago(headers: Headers, public_key: bytes) -> float | None:
    """Return the age in seconds of a request's signed time; None without a valid signature."""
    try:
        timestamp = headers.get(TIMESTAMP_HEADER.encode(), b"")
        age = (datetime.now(UTC) - datetime.fromisoformat(timestamp.decode())).total_seconds()
        signature = b64decode(headers.get(FLEET_HTTP_SIGNATURE_HEADER.encode(), b""), validate=True)
    except (ValueError, TypeError):
        return None
    return age if is_signed_by(public_key, signature, timestamp) else None
