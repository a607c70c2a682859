"""A phone's attachment to its gateway: prove the key, answer tasks, and reattach on errors."""

import logging
import random
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import grpc

from devices.phone.gateway_protocol import FINISHED, PROTOCOL
from devices.phone.reference_client.gateway_endpoint import GatewayEndpoint
from devices.phone.reference_client.phone_worker import PhoneWorker
from shared.errors import DeviceError, FrameError, RefusalCode, RejectedError
from shared.frames.refusal import Refusal, describe_servers_refusal
from shared.ledger.catch_up import CatchUp
from shared.proto.trainer_pb2 import FromPhone, Proof, Task, TaskKind, TaskResult, ToPhone
from shared.proto.trainer_pb2_grpc import GatewayStub
from shared.signing import SigningKey, answer_bytes, proof_bytes

log = logging.getLogger("samara.phone")

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds before a broken stream is opened again: doubled each time, plus up to half at random."""
_FINAL = {
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
}
"""Status codes after which reattaching would not help."""


def attach(
    phone: PhoneWorker, key: SigningKey, endpoint: GatewayEndpoint, stop: threading.Event
) -> bool:
    """Stay attached until the run is finished or the stop event is set.

    A broken stream is opened again.

    Returns:
        Whether the gateway has said that the run is finished.

    Raises:
        DeviceError: if the gateway does not admit this phone, or speaks another protocol.
        RejectedError: if the server says that this phone's key was revoked.
    """
    failures = 0
    while not stop.is_set():
        try:
            with endpoint.channel() as channel:
                for _ in answer_tasks(phone, key, GatewayStub(channel)):
                    failures = 0
                    if stop.is_set():
                        return False
            log.info("%s: the gateway ended the stream", endpoint.address)
        except grpc.RpcError as error:
            if error.code() == FINISHED:
                return True
            if error.code() in _FINAL:
                raise DeviceError(
                    f"{endpoint.address}: the gateway rejects this phone: {error.details()}"
                ) from error
            details = f"{error.code().name.lower()}: {error.details()}"
            log.warning("%s: %s", endpoint.address, endpoint.diagnose() or details)
        pause = min(FIRST_PAUSE * 2.0**failures, LONGEST_PAUSE) * random.uniform(1, 1.5)
        failures += 1
        stop.wait(pause)
    return False


def answer_tasks(phone: PhoneWorker, key: SigningKey, stub: Any) -> Iterator[int]:
    """Open one stream: prove the key, then answer task after task.

    Args:
        phone: phone that answers the tasks.
        key: private key of the phone.
        stub: stub of the gateway's service.

    Yields:
        The number of each task after its answer is queued.

    Raises:
        DeviceError: if the gateway speaks another protocol.
        RejectedError: if the server says that this phone's key was revoked.
        grpc.RpcError: when the stream breaks.
    """
    outgoing: SimpleQueue[FromPhone | None] = SimpleQueue()
    stream = stub.Attach(iter(outgoing.get, None))
    is_revoked = False
    try:
        for message in stream:
            if is_revoked:
                break
            reply, number = _reply(message, phone, key)
            outgoing.put(reply)
            if is_revoked := _says_revoked(message.task):
                outgoing.put(None)  # the gateway reads the reply, and ends the stream
            if number:
                yield number
    finally:
        outgoing.put(None)
        stream.cancel()
    if is_revoked:
        raise RejectedError(describe_servers_refusal(RefusalCode.REVOKED))


def _says_revoked(task: Task) -> bool:
    """Return whether a task is the server's notice that this phone's key was revoked."""
    if task.kind != TaskKind.REFUSED:
        return False
    try:
        return Refusal.decode(task.instruction).code == RefusalCode.REVOKED
    except FrameError:
        return False


def _reply(message: ToPhone, phone: PhoneWorker, key: SigningKey) -> tuple[FromPhone, int]:
    if message.WhichOneof("content") == "challenge":
        if message.challenge.version != PROTOCOL:
            raise DeviceError(
                f"the gateway has protocol {message.challenge.version}, this phone {PROTOCOL}; "
                "update the older of the two"
            )
        log.info("connected to the gateway")
        signature = key.sign(proof_bytes(message.challenge.nonce))
        return FromPhone(proof=Proof(public_key=key.public, signature=signature)), 0
    task, start = message.task, time.monotonic()
    frame = _frame(task, phone)
    if task.kind != TaskKind.HELLO:  # hellos are requested every few seconds
        log.info("answered: %s, %.2f s", TaskKind.Name(task.kind).lower(), time.monotonic() - start)
    signature = key.sign(answer_bytes(task.instruction, frame))
    return FromPhone(
        result=TaskResult(number=task.number, frame=frame, signature=signature)
    ), task.number


def _frame(task: Task, phone: PhoneWorker) -> bytes:
    catch_up = CatchUp(task.snapshot, task.tail)
    if task.kind == TaskKind.HELLO:
        return phone.hello(task.settings)
    if task.kind == TaskKind.TRAIN:
        return phone.train(task.instruction, catch_up, task.settings, task.shares)
    if task.kind == TaskKind.MASK:
        return phone.mask(task.instruction, task.settings)
    if task.kind == TaskKind.REFUSED:
        return phone.hear_refusal(task.instruction)
    if task.kind == TaskKind.BLOB:
        return phone.receive_blob(task.instruction)
    return phone.evaluate(task.instruction, catch_up, task.settings, task.personal)
