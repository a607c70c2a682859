"""The stream to a gateway: proof of the key, answers to tasks, and reopening after a break.

Phones and boards share this code; each supplies its own `TaskWorker`.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

import grpc

from samara.devices.live.connection.gateway_endpoint import GatewayEndpoint
from samara.devices.live.connection.gateway_protocol import FINISHED, PROTOCOL
from samara.shared.errors import DeviceError, FrameError, RefusalCode, RejectedError
from samara.shared.proto.trainer_pb2 import FromPhone, Proof, Task, TaskKind, TaskResult, ToPhone
from samara.shared.proto.trainer_pb2_grpc import GatewayStub
from samara.shared.protocol.frames.refusal import Refusal, describe_servers_refusal
from samara.shared.protocol.signing import SigningKey, answer_bytes, proof_bytes

log = logging.getLogger("samara.device")

FIRST_PAUSE = 1.0
"""Delay in seconds before a broken stream is first reopened.

The delay doubles each time. Up to half of it is added at random.
"""
LONGEST_PAUSE = 300.0
"""Maximum delay in seconds before a broken stream is reopened, without the random part."""
_FINAL = {
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
}
"""Status codes after which retrying the same gateway would not help."""


class TaskWorker(Protocol):
    """Answers the tasks of a stream: a phone's worker or a board."""

    def answer(self, task: Task) -> bytes:
        """Return the reply to a task as a frame.

        Args:
            task: task with the settings of its run; a board receives them only when they change.
        """


def attach(
    worker: TaskWorker,
    key: SigningKey,
    endpoint: GatewayEndpoint,
    stop: threading.Event,
    others: Sequence[GatewayEndpoint] = (),
    longest_pause: float = LONGEST_PAUSE,
    is_board: bool = False,
    note: Callable[[str, str], None] = lambda address, problem: None,
) -> bool:
    """Stay attached until the run is finished or the stop event is set.

    A broken stream is reopened, trying the gateways in turn.

    Args:
        worker: worker that answers the tasks.
        key: private key of the phone or board.
        endpoint: gateway to try first.
        stop: event that ends the attachment after the current task.
        others: the run's other gateways.
        longest_pause: maximum delay in seconds before another try, without the random part.
        is_board: whether this is a board.
        note: function that is called with a gateway's address and the reason why it does not
            answer. The reason is empty if the gateway answers.

    Returns:
        Whether a gateway has reported that the run is finished.

    Raises:
        DeviceError: if no gateway admits this key, or if a gateway uses another protocol version.
        RejectedError: if the server reports that this key was revoked.
    """
    endpoints = [endpoint, *others]
    failures = 0
    rejections = 0
    while not stop.is_set():
        current = endpoints[failures % len(endpoints)]
        try:
            with current.channel() as channel:
                stub = GatewayStub(channel)
                proved = partial(note, current.address, "")
                for _ in answer_tasks(worker, key, stub, is_board, proved):
                    failures = endpoints.index(current)
                    rejections = 0
                    if stop.is_set():
                        return False
            problem = "the gateway ended the stream"
            log.info("%s: %s", current.address, problem)
        except grpc.RpcError as error:
            if error.code() == FINISHED:
                return True
            if error.code() in _FINAL:
                rejections += 1
                rejected = f"{current.address}: the gateway rejects this key: {error.details()}"
                if rejections >= len(endpoints):
                    raise DeviceError(rejected) from error
                log.warning("%s", rejected)
            details = f"{error.code().name.lower()}: {error.details()}"
            problem = current.diagnose() or details
            log.warning("%s: %s", current.address, problem)
        note(current.address, problem)
        rounds = failures // len(endpoints)
        pause = min(FIRST_PAUSE * 2.0**rounds, longest_pause) * random.uniform(1, 1.5)
        failures += 1
        stop.wait(pause)
    return False


def answer_tasks(
    worker: TaskWorker,
    key: SigningKey,
    stub: Any,
    is_board: bool = False,
    proved: Callable[[], None] = lambda: None,
) -> Iterator[int]:
    """Open one stream: prove the key, then answer one task after another.

    Args:
        worker: worker that answers the tasks.
        key: private key of the phone or board.
        stub: stub of the gateway's service.
        is_board: whether this is a board.
        proved: function that is called when the proof of the key is queued.

    Yields:
        The number of each task after its answer is queued.

    Raises:
        DeviceError: if the gateway uses another protocol version, or does not accept boards.
        RejectedError: if the server reports that this key was revoked.
        grpc.RpcError: if the stream breaks.
    """
    outgoing: SimpleQueue[FromPhone | None] = SimpleQueue()
    stream = stub.Attach(iter(outgoing.get, None))
    is_revoked = False
    try:
        for message in stream:
            if is_revoked:
                break
            if message.WhichOneof("content") == "challenge":
                outgoing.put(_proof(message, key, is_board))
                proved()
                continue
            outgoing.put(_result(message.task, worker, key))
            if is_revoked := _says_revoked(message.task):
                outgoing.put(None)  # the gateway reads the reply and ends the stream
            yield message.task.number
    finally:
        outgoing.put(None)
        stream.cancel()
    if is_revoked:
        raise RejectedError(describe_servers_refusal(RefusalCode.REVOKED))


def _says_revoked(task: Task) -> bool:
    """Return whether a task is the server's notice that this key was revoked."""
    if task.kind != TaskKind.REFUSED:
        return False
    try:
        return Refusal.decode(task.instruction).code == RefusalCode.REVOKED
    except FrameError:
        return False


def _proof(message: ToPhone, key: SigningKey, is_board: bool) -> FromPhone:
    challenge = message.challenge
    if challenge.version != PROTOCOL:
        raise DeviceError(
            f"the gateway has protocol version {challenge.version}, and this device has version "
            f"{PROTOCOL}; update the older side"
        )
    if is_board and not challenge.takes_boards:
        raise DeviceError(
            "the gateway's version accepts only phones; update the gateway, or use --wire flower"
        )
    log.info("connected to the gateway")
    signature = key.sign(proof_bytes(challenge.nonce))
    return FromPhone(proof=Proof(public_key=key.public, signature=signature, is_board=is_board))


def _result(task: Task, worker: TaskWorker, key: SigningKey) -> FromPhone:
    start = time.monotonic()
    frame = worker.answer(task)
    if task.kind != TaskKind.HELLO:  # hellos may be requested often
        log.info("answered: %s, %.2f s", TaskKind.Name(task.kind).lower(), time.monotonic() - start)
    signature = key.sign(answer_bytes(task.instruction, frame))
    return FromPhone(result=TaskResult(number=task.number, frame=frame, signature=signature))
