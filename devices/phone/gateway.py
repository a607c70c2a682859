"""The gateway: where phones attach, and who passes on what they are asked.

One event loop holds all streams. A phone speaks only when it is spoken to; whoever says something
out of turn, too long or under a key that is not admitted loses the stream, and nobody else notices.
A phone that vanishes while it is asked gets the same question again when it comes back in time.
"""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from shared.client_index import client_index_of_key
from shared.errors import DeviceError, FrameError
from shared.proto.trainer_pb2 import Challenge, Task, ToPhone
from shared.proto.trainer_pb2_grpc import GatewayServicer, add_GatewayServicer_to_server
from shared.signing import answer_bytes, is_signed_by, normalize_public_key, proof_bytes
from shared.wire import MAX_FRAME_BYTES, kind_of

log = logging.getLogger("samara.gateway")

PROTOCOL = 1
NONCE_BYTES = 32
MAX_ANSWER_BYTES = 2 * 2**20
"""Of a message from a phone; a report of a million scalars would be no phone's."""
MAX_STREAMS = 4096
MAX_STRANGERS = 64
"""Streams that have not proved a key yet."""
PROOF_SECONDS = 10.0
"""From the challenge to its proof."""
ABSENT_SECONDS = 60.0
"""For which a question waits for a phone that is away; others' answers go with the same reply."""
_LOOK_SECONDS = 0.5
ATTACHMENTS_PER_MINUTE = 12
"""Of one key."""
OPTIONS = (
    ("grpc.so_reuseport", 0),  # a port that another process listens on is an error
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.max_send_message_length", 2 * MAX_FRAME_BYTES + 2**20),
    ("grpc.max_concurrent_streams", 4),  # of one connection; a phone has one
    ("grpc.max_metadata_size", 8192),
    # Mobile networks forget an idle connection after some minutes: a ping before that, no oftener.
    ("grpc.keepalive_time_ms", 240_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 60_000),
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # of a connection without a stream; a phone opens its stream at once
    ("grpc.max_connection_idle_ms", 10_000),
)


@dataclass(frozen=True)
class SignedAnswer:
    """A phone's answer, its own.

    Attributes:
        public_key: PEM.
        frame: a hello, report, evaluation or refusal.
        signature: over `shared.signing.answer_bytes`.
    """

    public_key: bytes
    frame: bytes
    signature: bytes


@dataclass(eq=False)
class _PhoneRequest:
    """What some phones are asked, and who has answered."""

    work: int
    instruction: bytes
    snapshot: bytes
    tail: bytes
    begun: float
    end: float
    answers: dict[int, asyncio.Future[SignedAnswer]] = field(default_factory=dict)

    def open_to(self, device: int) -> bool:
        """Whether an answer of this phone is wanted and missing."""
        return device in self.answers and not self.answers[device].done()


@dataclass(eq=False)
class _AttachedPhone:
    """A phone that is there."""

    public_key: bytes
    questions: asyncio.Queue[_PhoneRequest] = field(default_factory=asyncio.Queue)
    replaced: asyncio.Event = field(default_factory=asyncio.Event)


class _RejectionError(Exception):
    """Ends a stream, with what the phone is told."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Gateway(GatewayServicer):  # type: ignore[misc]
    """Holds the streams and asks.

    Args:
        admitted: whether a public key (PEM) may attach; asked anew at every attachment.

    Attributes:
        refused: how many streams ended for each reason.
    """

    def __init__(self, admitted: Callable[[bytes], bool]) -> None:
        self._admitted = admitted
        self._phones: dict[int, _AttachedPhone] = {}
        self._questions: list[_PhoneRequest] = []
        self._attachments: dict[int, deque[float]] = {}
        self._left: dict[int, float] = {}
        self._strangers = 0
        self.refused: dict[str, int] = {}

    @property
    def attached_phones(self) -> list[int]:
        """The device indices of the phones that are there, ascending."""
        return sorted(self._phones)

    async def ask(
        self,
        work: int,
        instruction: bytes,
        seconds: float,
        devices: Collection[int] | None = None,
        snapshot: bytes = b"",
        tail: bytes = b"",
    ) -> Mapping[int, SignedAnswer]:
        """Ask phones, and wait until all have answered or the time is over.

        Args:
            work: of `shared.proto.trainer_pb2.Work`.
            instruction: a frame; empty for a hello.
            seconds: to wait.
            devices: who is asked; by default all that are there. One that is not there is waited
                for a while, as it may come back.
            snapshot: for the one that is furthest behind.
            tail: likewise.

        Returns:
            The answers by device index.
        """
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        question = _PhoneRequest(work, instruction, snapshot, tail, now, now + seconds)
        chosen = self.attached_phones if devices is None else sorted(devices)
        question.answers = {device: loop.create_future() for device in chosen}
        self._questions.append(question)
        try:
            for device in chosen:
                if phone := self._phones.get(device):
                    phone.questions.put_nowait(question)
            while pending := self._awaited(question):
                await asyncio.wait(pending, timeout=_LOOK_SECONDS)
        finally:
            self._questions.remove(question)
            for answer in question.answers.values():
                answer.cancel()  # nothing to those that are done
        return {
            device: answer.result()
            for device, answer in question.answers.items()
            if not answer.cancelled()
        }

    def _awaited(self, question: _PhoneRequest) -> list[asyncio.Future[SignedAnswer]]:
        """The answers that are missing and may still come."""
        now = time.monotonic()
        if now >= question.end:
            return []
        return [
            answer
            for device, answer in question.answers.items()
            if not answer.done()
            and (
                device in self._phones
                or now < max(self._left.get(device, 0.0), question.begun) + ABSENT_SECONDS
            )
        ]

    async def Attach(self, requests: Any, context: Any) -> None:  # noqa: N802
        """See trainer.proto."""
        try:
            public_key = await self._introduced(context)
            await self._served(public_key, context)
        except _RejectionError as turned:
            self.refused[turned.reason] = self.refused.get(turned.reason, 0) + 1
            await context.abort(turned.code, turned.reason)

    async def _introduced(self, context: Any) -> bytes:
        """The key that whoever opened the stream holds."""
        if self._strangers >= MAX_STRANGERS:
            raise _RejectionError(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many at the door")
        self._strangers += 1
        try:
            nonce = secrets.token_bytes(NONCE_BYTES)
            challenge = Challenge(version=PROTOCOL, nonce=nonce)
            async with asyncio.timeout(PROOF_SECONDS):
                await context.write(ToPhone(challenge=challenge))
                said = await context.read()
        except TimeoutError:
            raise _RejectionError(grpc.StatusCode.DEADLINE_EXCEEDED, "no proof in time") from None
        finally:
            self._strangers -= 1
        if said is grpc.aio.EOF or said.WhichOneof("what") != "proof":
            raise _RejectionError(grpc.StatusCode.FAILED_PRECONDITION, "no proof of a key")
        try:
            public_key = normalize_public_key(said.proof.public_key)
        except DeviceError as error:
            raise _RejectionError(grpc.StatusCode.UNAUTHENTICATED, str(error)) from error
        if not is_signed_by(public_key, said.proof.signature, proof_bytes(nonce)):
            raise _RejectionError(grpc.StatusCode.UNAUTHENTICATED, "the proof is not of this key")
        if not self._admitted(public_key):
            raise _RejectionError(grpc.StatusCode.PERMISSION_DENIED, "this key is not admitted")
        times = self._attachments.setdefault(client_index_of_key(public_key), deque())
        now = time.monotonic()
        while times and times[0] < now - 60:
            times.popleft()
        if len(times) >= ATTACHMENTS_PER_MINUTE:
            raise _RejectionError(grpc.StatusCode.RESOURCE_EXHAUSTED, "attaches too often")
        times.append(now)
        return public_key

    async def _served(self, public_key: bytes, context: Any) -> None:
        device, phone = client_index_of_key(public_key), _AttachedPhone(public_key)
        if before := self._phones.get(device):
            before.replaced.set()
        self._phones[device] = phone
        for question in self._questions:
            if question.open_to(device):
                phone.questions.put_nowait(question)
        try:
            await self._conversed(device, phone, context)
        finally:
            if self._phones.get(device) is phone:
                del self._phones[device]
                self._left[device] = time.monotonic()

    async def _conversed(self, device: int, phone: _AttachedPhone, context: Any) -> None:
        """Question after question; in between, silence."""
        number = 0
        said = asyncio.ensure_future(context.read())
        replaced = asyncio.ensure_future(phone.replaced.wait())
        try:
            while True:
                asked = asyncio.ensure_future(phone.questions.get())
                try:
                    await asyncio.wait((said, replaced, asked), return_when=asyncio.FIRST_COMPLETED)
                    if not await self._still_silent(said, replaced):
                        return
                    question = asked.result()
                finally:
                    asked.cancel()
                left = question.end - time.monotonic()
                if left <= 0 or not question.open_to(device):
                    continue
                number += 1
                await context.write(ToPhone(task=_task(question, number, left)))
                await asyncio.wait((said, replaced), return_when=asyncio.FIRST_COMPLETED)
                if not said.done() or said.result() is grpc.aio.EOF:
                    return
                answer = _checked(said.result(), number, phone.public_key, question.instruction)
                if question.open_to(device):
                    question.answers[device].set_result(answer)
                said = asyncio.ensure_future(context.read())
        finally:
            said.cancel()
            replaced.cancel()

    async def _still_silent(self, said: asyncio.Future[Any], replaced: asyncio.Future[Any]) -> bool:
        """False where the phone has gone or has attached anew."""
        if said.done() and said.result() is not grpc.aio.EOF:
            raise _RejectionError(grpc.StatusCode.FAILED_PRECONDITION, "speaks out of turn")
        return not (said.done() or replaced.done())


def _task(question: _PhoneRequest, number: int, seconds: float) -> Task:
    return Task(
        number=number,
        work=question.work,  # type: ignore[arg-type]
        instruction=question.instruction,
        snapshot=question.snapshot,
        tail=question.tail,
        seconds=seconds,
    )


def _checked(said: Any, number: int, public_key: bytes, instruction: bytes) -> SignedAnswer:
    """A phone's answer, if it is a frame of its own to what it was asked."""
    if said.WhichOneof("what") != "done" or said.done.number != number:
        raise _RejectionError(grpc.StatusCode.FAILED_PRECONDITION, "answers something else")
    frame, signature = said.done.frame, said.done.signature
    try:
        kind_of(frame)
    except FrameError as error:
        raise _RejectionError(grpc.StatusCode.INVALID_ARGUMENT, "not a frame") from error
    if not is_signed_by(public_key, signature, answer_bytes(instruction, frame)):
        raise _RejectionError(grpc.StatusCode.UNAUTHENTICATED, "the answer is not signed by it")
    return SignedAnswer(public_key, frame, signature)


async def start_gateway(
    gateway: Gateway, address: str, certificate: bytes = b"", key: bytes = b""
) -> tuple[Any, int]:
    """Serve a gateway.

    Args:
        gateway: to serve.
        address: host:port; port 0 takes a free one.
        certificate: PEM chain; without it there is no TLS.
        key: its private key, PEM.

    Returns:
        The server, and the port.

    Raises:
        DeviceError: if the port cannot be opened.
    """
    server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=MAX_STREAMS)
    add_GatewayServicer_to_server(gateway, server)
    try:
        if certificate:
            credentials = grpc.ssl_server_credentials([(key, certificate)])
            port = server.add_secure_port(address, credentials)
        else:
            port = server.add_insecure_port(address)
    except (RuntimeError, ValueError) as error:
        raise DeviceError(
            f"{address}: cannot be opened; is it host:port of this machine, and the port free?"
        ) from error
    await server.start()
    return server, port
