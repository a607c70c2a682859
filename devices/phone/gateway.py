"""The gateway: phones attach to it, and it passes requests on to them.

One event loop holds all streams. A phone sends a message only in reply to one. A stream on which a
message is out of turn, too long or of a key that is not admitted is ended; others are unaffected.
A phone that disconnects during a request gets it again if it reattaches in time. When the run is
finished every stream ends with a status that says so, also one that is opened then.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import grpc

from devices.phone.gateway_protocol import FINISHED, PROTOCOL
from shared.client_index import client_index_of_key
from shared.errors import DeviceError, FrameError
from shared.proto.trainer_pb2 import Challenge, Task, ToPhone
from shared.proto.trainer_pb2_grpc import GatewayServicer
from shared.rate_limit import RateLimit, network_of
from shared.signing import answer_bytes, is_signed_by, normalize_public_key, proof_bytes
from shared.wire import kind_of

log = logging.getLogger("samara.gateway")

NONCE_BYTES = 32
MAX_ANSWER_BYTES = 2 * 2**20
"""Largest message from a phone, in bytes."""
MAX_STREAMS = 4096
MAX_UNAUTHENTICATED = 64
"""Most streams that have not proved a key yet."""
PROOF_SECONDS = 10.0
"""Seconds from the challenge to its proof."""
RECONNECT_SECONDS = 60.0
"""Seconds that a request waits for a phone to reattach; it delays the answers of the others."""
MAX_ASKED = 4
"""Most new keys that the server is asked for at once."""
NEW_KEYS_PER_MINUTE = 6
"""Most new keys of one network address that the server is asked for in a minute."""
WARNING_SECONDS = 60.0
"""Least time between two log lines about a server that cannot be asked."""
_POLL_SECONDS = 0.5
ATTACHMENTS_PER_MINUTE = 12
"""Most attachments of one key in a minute."""


@dataclass(frozen=True)
class SignedAnswer:
    """A phone's answer to a request, with its key and signature.

    Attributes:
        public_key: public key of the phone, PEM.
        frame: hello, report, evaluation, masking frame or refusal.
        signature: signature over instruction and frame.
    """

    public_key: bytes
    frame: bytes
    signature: bytes


@dataclass(eq=False)
class _PhoneRequest:
    """A request to some phones, with their answers so far; times are monotonic seconds."""

    task: Task
    shares: Mapping[int, bytes]
    start: float
    end: float
    answers: Mapping[int, asyncio.Future[SignedAnswer]]

    def awaits_answer_of(self, client: int) -> bool:
        """Return whether this client's answer is requested and missing."""
        return client in self.answers and not self.answers[client].done()


@dataclass(eq=False)
class _AttachedPhone:
    """An attached phone, with the requests it has yet to answer."""

    public_key: bytes
    requests: asyncio.Queue[_PhoneRequest] = field(default_factory=asyncio.Queue)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class _RejectionError(Exception):
    """The error that ends a phone's stream, with the status code and reason for the phone."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Gateway(GatewayServicer):  # type: ignore[misc]
    """The gRPC service that holds the phones' streams and sends them requests.

    Args:
        admitted: function that returns whether a public key (PEM) may attach.
        registered: function that asks the server whether any other key may attach, in a thread of
            its own; None admits no others.

    Attributes:
        refused: number of rejected streams by reason.
        told: client indices of the phones that were told that the run is finished.
    """

    def __init__(
        self,
        admitted: Callable[[bytes], bool],
        registered: Callable[[bytes], bool] | None = None,
    ) -> None:
        self._admitted, self._registered = admitted, registered
        self._asked, self._warned_at = 0, -WARNING_SECONDS
        self._phones: dict[int, _AttachedPhone] = {}
        self._requests: list[_PhoneRequest] = []
        self._attachments = RateLimit(ATTACHMENTS_PER_MINUTE)
        self._new_keys = RateLimit(NEW_KEYS_PER_MINUTE)
        self._detached_at: dict[int, float] = {}
        self._unauthenticated = 0
        self._is_finished = False
        self.refused: dict[str, int] = {}
        self.told: set[int] = set()

    @property
    def attached_phones(self) -> list[int]:
        """The client indices of the attached phones, ascending."""
        return sorted(self._phones)

    async def finish(self) -> None:
        """Tell all phones, those too that attach later, that the run is finished."""
        self._is_finished = True
        for phone in self._phones.values():
            phone.ended.set()

    async def ask(
        self,
        task: Task,
        seconds: float,
        clients: Collection[int] | None = None,
        shares: Mapping[int, bytes] | None = None,
    ) -> Mapping[int, SignedAnswer]:
        """Send a task to phones, and wait until all have answered or the time is over.

        Args:
            task: the task; number, seconds and shares are set for each phone.
            seconds: time limit.
            clients: client indices of the phones; by default all that are attached. A phone that is
                not attached is waited for up to `RECONNECT_SECONDS`.
            shares: sealed shares by client index, where a train instruction has masks.

        Returns:
            The answers by client index.
        """
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        chosen = self.attached_phones if clients is None else sorted(clients)
        answers: dict[int, asyncio.Future[SignedAnswer]]
        answers = {client: loop.create_future() for client in chosen}
        request = _PhoneRequest(task, shares or {}, now, now + seconds, answers)
        self._requests.append(request)
        try:
            for client in chosen:
                if phone := self._phones.get(client):
                    phone.requests.put_nowait(request)
            while pending := self._pending_answers(request):
                await asyncio.wait(pending, timeout=_POLL_SECONDS)
        finally:
            self._requests.remove(request)
            for answer in answers.values():
                answer.cancel()  # no effect on answers that are done
        return {
            client: answer.result() for client, answer in answers.items() if not answer.cancelled()
        }

    def _pending_answers(self, request: _PhoneRequest) -> list[asyncio.Future[SignedAnswer]]:
        """Return the missing answers that may still arrive."""
        now = time.monotonic()
        if now >= request.end:
            return []
        return [
            answer
            for client, answer in request.answers.items()
            if not answer.done()
            and (
                client in self._phones
                or now < max(self._detached_at.get(client, 0.0), request.start) + RECONNECT_SECONDS
            )
        ]

    async def Attach(self, messages: Any, context: Any) -> None:  # noqa: N802
        """Serve one phone's stream; see trainer.proto."""
        try:
            public_key = await self._authenticate(context)
            if not self._is_finished:
                await self._serve_phone(public_key, context)
            if self._is_finished:
                self.told.add(client_index_of_key(public_key))
                await context.abort(FINISHED, "the run is finished")
        except _RejectionError as rejection:
            self.refused[rejection.reason] = self.refused.get(rejection.reason, 0) + 1
            await context.abort(rejection.code, rejection.reason)

    async def _authenticate(self, context: Any) -> bytes:
        """Return the public key whose private half the stream's opener has proved to hold."""
        if self._unauthenticated >= MAX_UNAUTHENTICATED:
            raise _RejectionError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "too many streams without a proof; try again later",
            )
        self._unauthenticated += 1
        try:
            nonce = secrets.token_bytes(NONCE_BYTES)
            challenge = Challenge(version=PROTOCOL, nonce=nonce)
            async with asyncio.timeout(PROOF_SECONDS):
                await context.write(ToPhone(challenge=challenge))
                message = await context.read()
        except TimeoutError:
            raise _RejectionError(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"no proof of the key within {PROOF_SECONDS:g} s"
            ) from None
        finally:
            self._unauthenticated -= 1
        if message is grpc.aio.EOF or message.WhichOneof("content") != "proof":
            raise _RejectionError(
                grpc.StatusCode.FAILED_PRECONDITION, "the first message must be a proof of the key"
            )
        try:
            public_key = normalize_public_key(message.proof.public_key)
        except DeviceError as error:
            raise _RejectionError(grpc.StatusCode.UNAUTHENTICATED, str(error)) from error
        if not is_signed_by(public_key, message.proof.signature, proof_bytes(nonce)):
            raise _RejectionError(
                grpc.StatusCode.UNAUTHENTICATED, "the proof is not signed with this key"
            )
        await self._check_admitted(public_key, context.peer())
        if not self._attachments.admits(str(client_index_of_key(public_key))):
            raise _RejectionError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "too many attachments in a minute; try again later",
            )
        return public_key

    async def _check_admitted(self, public_key: bytes, peer: str) -> None:
        if self._admitted(public_key):
            return
        denied = grpc.StatusCode.PERMISSION_DENIED
        if self._registered is None:
            raise _RejectionError(
                denied, "this key is not admitted; add it to the gateway's --phones"
            )
        later = grpc.StatusCode.RESOURCE_EXHAUSTED
        if self._asked >= MAX_ASKED:
            raise _RejectionError(later, "too many new keys at once; try again later")
        if not self._new_keys.admits(network_of(_host_of(peer))):
            raise _RejectionError(later, "too many new keys of this address; try again in a minute")
        self._asked += 1
        try:
            if not await asyncio.to_thread(self._registered, public_key):
                raise _RejectionError(denied, "this key is not registered at the server")
        except DeviceError as error:
            if (now := time.monotonic()) >= self._warned_at + WARNING_SECONDS:
                self._warned_at = now
                log.warning("new phones are not admitted at present: %s", error)
            raise _RejectionError(
                later, "the server cannot be asked for this key; try again later"
            ) from error
        finally:
            self._asked -= 1

    async def _serve_phone(self, public_key: bytes, context: Any) -> None:
        client, phone = client_index_of_key(public_key), _AttachedPhone(public_key)
        if before := self._phones.get(client):
            before.ended.set()
        self._phones[client] = phone
        for request in self._requests:
            if request.awaits_answer_of(client):
                phone.requests.put_nowait(request)
        try:
            await self._exchange_messages(client, phone, context)
        finally:
            if self._phones.get(client) is phone:
                del self._phones[client]
                self._detached_at[client] = time.monotonic()

    async def _exchange_messages(self, client: int, phone: _AttachedPhone, context: Any) -> None:
        """Send request after request and receive the answers until the phone detaches."""
        number = 0
        incoming = asyncio.ensure_future(context.read())
        ended = asyncio.ensure_future(phone.ended.wait())
        try:
            while True:
                next_request = asyncio.ensure_future(phone.requests.get())
                try:
                    await asyncio.wait(
                        (incoming, ended, next_request), return_when=asyncio.FIRST_COMPLETED
                    )
                    if not await self._remains_attached(incoming, ended):
                        return
                    request = next_request.result()
                finally:
                    next_request.cancel()
                remaining = request.end - time.monotonic()
                if remaining <= 0 or not request.awaits_answer_of(client):
                    continue
                number += 1
                shares = request.shares.get(client, b"")
                task = Task(number=number, seconds=remaining, shares=shares)
                task.MergeFrom(request.task)
                await context.write(ToPhone(task=task))
                await asyncio.wait((incoming, ended), return_when=asyncio.FIRST_COMPLETED)
                if not incoming.done() or incoming.result() is grpc.aio.EOF:
                    return
                answer = _check_answer(
                    incoming.result(), number, phone.public_key, task.instruction
                )
                if request.awaits_answer_of(client):
                    request.answers[client].set_result(answer)
                incoming = asyncio.ensure_future(context.read())
        finally:
            incoming.cancel()
            ended.cancel()

    async def _remains_attached(
        self, incoming: asyncio.Future[Any], ended: asyncio.Future[Any]
    ) -> bool:
        """Return whether the phone is silent, and nothing else ends its stream."""
        if incoming.done() and incoming.result() is not grpc.aio.EOF:
            raise _RejectionError(
                grpc.StatusCode.FAILED_PRECONDITION, "a message was sent out of turn"
            )
        return not (incoming.done() or ended.done())


def _host_of(peer: str) -> str:
    """Return the address in gRPC's name of a peer, as in ipv4:192.0.2.1:40000."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")


def _check_answer(message: Any, number: int, public_key: bytes, instruction: bytes) -> SignedAnswer:
    """Return the answer in a phone's message, if it answers the task with a signed frame."""
    if message.WhichOneof("content") != "result" or message.result.number != number:
        raise _RejectionError(
            grpc.StatusCode.FAILED_PRECONDITION, "the message does not answer the task"
        )
    frame, signature = message.result.frame, message.result.signature
    try:
        kind_of(frame)
    except FrameError as error:
        raise _RejectionError(
            grpc.StatusCode.INVALID_ARGUMENT, "the answer is not a frame"
        ) from error
    if not is_signed_by(public_key, signature, answer_bytes(instruction, frame)):
        raise _RejectionError(
            grpc.StatusCode.UNAUTHENTICATED, "the answer is not signed with the phone's key"
        )
    return SignedAnswer(public_key, frame, signature)
