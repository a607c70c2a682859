"""The gateway, which passes requests on to attached phones and boards.

One event loop serves all streams. A phone sends messages only in reply to the gateway's messages.
The gateway ends a single stream if a message is out of turn or too long, or if the phone's key is
not admitted. If a phone disconnects during a request and reattaches in time, it gets the request
again. When the run is finished, all open and later streams end with the status code of a finished
run. The gateway treats boards as it treats phones.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from samara.devices.gateway.admission import Admission, RejectionError
from samara.devices.gateway.phone_stream import PhoneStream
from samara.devices.gateway.requests import (
    MAX_PART_BYTES,
    RECONNECT_SECONDS,
    GatewayRequest,
    SignedAnswer,
)
from samara.devices.live.connection.gateway_protocol import FINISHED, PROTOCOL
from samara.devices.live.connection.introduced_clients import IntroducedClients
from samara.shared.errors import DeviceError, FrameError
from samara.shared.network.log_budget import LogBudget
from samara.shared.network.rate_limit import RateLimit
from samara.shared.proto.trainer_pb2 import Challenge, FromPhone, Task, ToPhone
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.signing import (
    answer_bytes,
    is_signed_by,
    normalize_public_key,
    proof_bytes,
)
from samara.shared.protocol.wire import Kind, kind_of

log = logging.getLogger("samara.gateway")

NONCE_BYTES = 32
SESSION_BYTES = 8
MAX_ANSWER_BYTES = 2 * 2**20
"""Size limit in bytes of a message from a phone."""
MAX_STREAMS = 4096
"""Maximum number of gRPC streams that have proved a key."""
PROOF_SECONDS = 10.0
"""Seconds allowed from the challenge to its proof."""
LINGER_SECONDS = 0.25
"""Time to wait after a request's first answers, in seconds, to return more answers with them."""
_POLL_SECONDS = 0.5
ATTACHMENTS_PER_MINUTE = 12
"""Maximum number of attachments of one key in a minute."""


@dataclass(eq=False)
class _AttachedPhone:
    """An attached phone or board, with the requests it has yet to answer.

    Attributes:
        public_key: public key of the phone or board, PEM.
        is_board: whether the other end of the stream is a board, not a phone.
        config: last run config that was sent to a board; empty for a phone.
        is_introduced: whether the phone or board has answered with a hello on this stream.
        requests: unanswered requests.
        ended: future that is set to end the stream.
    """

    public_key: bytes
    is_board: bool
    config: bytes = b""
    is_introduced: bool = False
    requests: asyncio.Queue[GatewayRequest] = field(default_factory=asyncio.Queue)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Gateway:
    """Holds the phones' streams, and sends requests over them.

    Args:
        admitted: function that returns whether a public key (PEM) may attach.
        registered: function that asks the server about a key that `admitted` rejects; it runs in a
            separate thread. None rejects such a key without asking.
        folder: folder with the file of introduced clients; None stores nothing.

    Attributes:
        session: random bytes that tell the server when the gateway's process has changed.
        lines: limit on log lines about unknown connections.
        refused: number of rejected streams by reason.
        told: client indices of the phones that have been informed that the run is finished.
    """

    def __init__(
        self,
        admitted: Callable[[bytes], bool],
        registered: Callable[[bytes], bool] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.lines = LogBudget(log)
        self._introduced = IntroducedClients(folder, self.lines)
        self._admission = Admission(admitted, registered, self.lines)
        self._phones: dict[int, _AttachedPhone] = {}
        self._requests: list[GatewayRequest] = []
        self._in_parts: list[GatewayRequest] = []  # requests whose answers are collected in parts
        self._attachments = RateLimit(ATTACHMENTS_PER_MINUTE)
        self._detached_at: dict[int, float] = {}
        self._is_finished = False
        self.session = secrets.token_bytes(SESSION_BYTES)
        self.refused: dict[str, int] = {}
        self.told: set[int] = set()

    @property
    def attached_phones(self) -> list[int]:
        """The client indices of the attached phones, ascending."""
        return sorted(self._phones.copy())

    async def finish(self) -> None:
        """Inform all phones that the run is finished, including phones that attach later."""
        self._is_finished = True
        for phone in self._phones.values():
            phone.ended.set()

    def clients_of(self, with_phones: bool) -> list[int]:
        """Return the client indices of the attached boards, with or without phones."""
        phones = self._phones.copy()  # other threads call this while phones attach and detach
        return sorted(client for client, phone in phones.items() if with_phones or phone.is_board)

    def introduced(self, clients: Collection[int]) -> list[int]:
        """Return the clients that have answered with a hello since they attached."""
        phones = {client: self._phones.get(client) for client in clients}
        return sorted(c for c, phone in phones.items() if phone and phone.is_introduced)

    async def ask(
        self,
        task: Task,
        seconds: float,
        clients: Collection[int] | None = None,
        shares: Mapping[int, bytes] | None = None,
        config: bytes = b"",
    ) -> Mapping[int, SignedAnswer]:
        """Send a task to phones, and wait until all have answered or the time is over.

        Args:
            task: the task, whose number, seconds and shares are then set for each phone.
            seconds: time limit in seconds.
            clients: client indices of the phones; by default all attached phones. The call waits up
                to `RECONNECT_SECONDS` for a detached phone.
            shares: sealed shares by client index, for a train instruction with masks.
            config: run config as sorted JSON, which boards get as settings.

        Returns:
            The answers by client index.
        """
        now = time.monotonic()
        chosen = self.attached_phones if clients is None else sorted(clients)
        request = GatewayRequest(task, config, now, now + seconds)
        self._requests.append(request)
        try:
            self._put(request, request.add_clients(chosen, shares or {}))
            while pending := request.pending(chosen, self._is_expected):
                await asyncio.wait(pending.values(), timeout=_POLL_SECONDS)
        finally:
            self._requests.remove(request)
            answers = request.take_answers(chosen)
            request.close()
        return answers

    async def ask_for_part(
        self,
        task: Task,
        seconds: float,
        clients: Collection[int],
        shares: Mapping[int, bytes] | None = None,
        config: bytes = b"",
    ) -> tuple[Mapping[int, SignedAnswer], list[int]]:
        """Send a task to phones, and wait until some have answered or the time is over.

        A repeated call with the same task continues the open request and returns further answers.
        A slow phone therefore does not delay the other phones' answers, and many answers are
        returned in parts of `MAX_PART_BYTES`.

        Args:
            task: as in `ask`.
            seconds: as in `ask`.
            clients: as in `ask`, but required.
            shares: as in `ask`.
            config: as in `ask`.

        Returns:
            The answers by client index, and the clients whose answers may still arrive or do not
            fit in this part. The gateway forgets the returned answers.
        """
        now = time.monotonic()
        request = GatewayRequest(task, config, now, now + seconds)
        self._close_old_requests(now)
        if same := [other for other in self._in_parts if other.key == request.key]:
            request = same[0]
            request.end = max(request.end, now + seconds)
        else:
            self._requests.append(request)
            self._in_parts.append(request)
        self._put(request, request.add_clients(sorted(clients), shares or {}))
        while not request.answered(clients):
            if not (tasks := request.pending(clients, self._is_expected).values()):
                break
            first = asyncio.FIRST_COMPLETED
            done, _ = await asyncio.wait(tasks, timeout=_POLL_SECONDS, return_when=first)
            if done:
                await asyncio.wait(tasks, timeout=LINGER_SECONDS)
        answers = request.take_answers(clients, MAX_PART_BYTES)
        no_room = request.answered(clients)
        return answers, sorted([*no_room, *request.pending(clients, self._is_expected)])

    def _close_old_requests(self, now: float) -> None:
        """Drop requests with answers returned in parts, once they are answered or timed out."""
        for request in [r for r in self._in_parts if not r.answers or now >= r.end]:
            self._in_parts.remove(request)
            self._requests.remove(request)
            request.close()

    def _put(self, request: GatewayRequest, clients: Iterable[int]) -> None:
        for client in clients:
            if phone := self._phones.get(client):
                phone.requests.put_nowait(request)

    def _is_expected(self, client: int, asked: float) -> bool:
        """Return whether a client is attached, or may reattach in time."""
        left = max(self._detached_at.get(client, 0.0), asked)
        return client in self._phones or time.monotonic() < left + RECONNECT_SECONDS

    async def serve(self, stream: PhoneStream) -> None:
        """Serve one phone's stream until it ends.

        Raises:
            RejectionError: if the gateway ends the stream, including when the run is finished.
        """
        try:
            public_key, is_board = await self._authenticate(stream)
            if not self._is_finished:
                await self._serve_phone(_AttachedPhone(public_key, is_board), stream)
        except RejectionError as rejection:
            self.refused[rejection.reason] = self.refused.get(rejection.reason, 0) + 1
            self.lines.warn(stream.host, f"was not attached: {rejection.reason}")
            raise
        if self._is_finished:
            self.told.add(client_index_of_key(public_key))
            raise RejectionError(FINISHED, "the run is finished")

    async def _authenticate(self, stream: PhoneStream) -> tuple[bytes, bool]:
        """Return the public key that the other end has proved to own, and whether it is a board.

        A false claim to be a board only affects the other end's own stream.
        """
        nonce = secrets.token_bytes(NONCE_BYTES)
        challenge = Challenge(version=PROTOCOL, nonce=nonce, takes_boards=True)
        try:
            async with asyncio.timeout(PROOF_SECONDS):
                await stream.write(ToPhone(challenge=challenge))
                message = await stream.read()
        except TimeoutError:
            raise RejectionError(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"no proof of the key within {PROOF_SECONDS:g} s"
            ) from None
        if message is None or message.WhichOneof("content") != "proof":
            raise RejectionError(
                grpc.StatusCode.FAILED_PRECONDITION, "the first message must be a proof of the key"
            )
        try:
            public_key = normalize_public_key(message.proof.public_key)
        except DeviceError as error:
            raise RejectionError(grpc.StatusCode.UNAUTHENTICATED, str(error)) from error
        if not is_signed_by(public_key, message.proof.signature, proof_bytes(nonce)):
            raise RejectionError(
                grpc.StatusCode.UNAUTHENTICATED, "the proof is not signed with this key"
            )
        await self._admission.check(public_key, stream.host)
        if not self._attachments.admits(str(client_index_of_key(public_key))):
            raise RejectionError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "too many attachments in a minute; try again later",
            )
        stream.keep()
        return public_key, message.proof.is_board

    async def _serve_phone(self, phone: _AttachedPhone, stream: PhoneStream) -> None:
        client = client_index_of_key(phone.public_key)
        if before := self._phones.get(client):
            before.ended.set()
        self._phones[client] = phone
        for request in self._requests:
            if request.awaits_answer_of(client):
                phone.requests.put_nowait(request)
        try:
            await self._exchange_messages(client, phone, stream)
        finally:
            if self._phones.get(client) is phone:
                del self._phones[client]
                self._detached_at[client] = time.monotonic()

    async def _exchange_messages(
        self, client: int, phone: _AttachedPhone, stream: PhoneStream
    ) -> None:
        """Send requests one by one and receive the answers until the phone detaches."""
        number = 0
        incoming = asyncio.ensure_future(stream.read())
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
                task = _task_for(phone, request, client)
                task.number = number
                task.seconds = remaining
                await stream.write(ToPhone(task=task))
                await asyncio.wait((incoming, ended), return_when=asyncio.FIRST_COMPLETED)
                if not incoming.done() or (message := incoming.result()) is None:
                    return
                answer = _check_answer(message, number, phone.public_key, task.instruction)
                if kind_of(answer.frame) is Kind.HELLO:
                    self._introduced.add(client, answer.frame)
                    phone.is_introduced = True
                if request.awaits_answer_of(client):
                    request.answers[client].set_result(answer)
                incoming = asyncio.ensure_future(stream.read())
        finally:
            incoming.cancel()
            ended.cancel()

    async def _remains_attached(
        self, incoming: asyncio.Future[FromPhone | None], ended: asyncio.Future[Any]
    ) -> bool:
        """Return whether to keep waiting for a silent phone whose stream is still open."""
        if incoming.done() and incoming.result() is not None:
            raise RejectionError(
                grpc.StatusCode.FAILED_PRECONDITION, "a message was sent out of turn"
            )
        return not (incoming.done() or ended.done())


def _task_for(phone: _AttachedPhone, request: GatewayRequest, client: int) -> Task:
    """Return the task that a request sends to a phone or board.

    The task contains the request's run config only if the phone is a board and the last task to it
    had another run config. The run config is then recorded.
    """
    task = Task(shares=request.shares.get(client, b""))
    task.MergeFrom(request.task)
    if phone.is_board and request.config:
        task.settings = b"" if request.config == phone.config else request.config
        phone.config = request.config
    return task


def _check_answer(
    message: FromPhone, number: int, public_key: bytes, instruction: bytes
) -> SignedAnswer:
    """Return the signed answer in a phone's message, after checking that it answers the task."""
    if message.WhichOneof("content") != "result" or message.result.number != number:
        raise RejectionError(
            grpc.StatusCode.FAILED_PRECONDITION, "the message does not answer the task"
        )
    frame = message.result.frame
    signature = message.result.signature
    try:
        kind_of(frame)
    except FrameError as error:
        raise RejectionError(
            grpc.StatusCode.INVALID_ARGUMENT, "the answer is not a frame"
        ) from error
    if not is_signed_by(public_key, signature, answer_bytes(instruction, frame)):
        raise RejectionError(
            grpc.StatusCode.UNAUTHENTICATED, "the answer is not signed with the phone's key"
        )
    return SignedAnswer(public_key, frame, signature)
