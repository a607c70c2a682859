"""A phone's stream to its gateway: prove the key, then answer what is asked, and come back."""

import logging
import random
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import grpc

from devices.phone.reference_client.gateway_endpoint import GatewayEndpoint
from devices.phone.reference_client.phone import Phone
from shared.errors import DeviceError
from shared.ledger.catch_up import CatchUp
from shared.proto.trainer_pb2 import Done, FromPhone, Proof, Task, ToPhone, Work
from shared.proto.trainer_pb2_grpc import GatewayStub
from shared.signing import PhoneKey, answer_bytes, proof_bytes

log = logging.getLogger("samara.phone")

PROTOCOL = 1
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds before a stream that broke is opened again: twice as long each time, and half more."""
_FINAL = {
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
}
"""Coming back would not help."""


def attach(phone: Phone, key: PhoneKey, door: GatewayEndpoint, stop: threading.Event) -> None:
    """Stay attached until told to stop; a stream that breaks is opened again.

    Raises:
        DeviceError: if the gateway does not admit this phone, or speaks another protocol.
    """
    failures = 0
    while not stop.is_set():
        try:
            with door.channel() as channel:
                for _ in answer_tasks(phone, key, GatewayStub(channel)):
                    failures = 0
                    if stop.is_set():
                        return
            log.info("%s: the gateway has ended the stream", door.address)
        except grpc.RpcError as error:
            if error.code() in _FINAL:
                raise DeviceError(
                    f"{door.address}: the gateway turns this phone away: {error.details()}"
                ) from error
            said = f"{error.code().name.lower()}: {error.details()}"
            log.warning("%s: %s", door.address, door.problem() or said)
        pause = min(FIRST_PAUSE * 2.0**failures, LONGEST_PAUSE) * random.uniform(1, 1.5)
        failures += 1
        stop.wait(pause)


def answer_tasks(phone: Phone, key: PhoneKey, stub: Any) -> Iterator[int]:
    """Hold one stream: prove the key, then answer task after task.

    Args:
        phone: answers.
        key: its own.
        stub: of the gateway's service.

    Yields:
        The number of the task just answered.

    Raises:
        DeviceError: if the gateway speaks another protocol.
        grpc.RpcError: when the stream breaks.
    """
    outgoing: SimpleQueue[FromPhone | None] = SimpleQueue()
    stream = stub.Attach(iter(outgoing.get, None))
    try:
        for said in stream:
            reply, number = _reply(said, phone, key)
            outgoing.put(reply)
            if number:
                yield number
    finally:
        outgoing.put(None)
        stream.cancel()


def _reply(said: ToPhone, phone: Phone, key: PhoneKey) -> tuple[FromPhone, int]:
    if said.WhichOneof("what") == "challenge":
        if said.challenge.version != PROTOCOL:
            raise DeviceError(
                f"the gateway speaks protocol {said.challenge.version} and this phone {PROTOCOL}; "
                "update the older of the two"
            )
        log.info("the gateway is reached")
        signature = key.sign(proof_bytes(said.challenge.nonce))
        return FromPhone(proof=Proof(public_key=key.public, signature=signature)), 0
    task, begun = said.task, time.monotonic()
    frame = _frame(task, phone)
    if task.work != Work.HELLO:  # which gateways ask again and again
        log.info("answered: %s, %.2f s", Work.Name(task.work).lower(), time.monotonic() - begun)
    signature = key.sign(answer_bytes(task.instruction, frame))
    return FromPhone(done=Done(number=task.number, frame=frame, signature=signature)), task.number


def _frame(task: Task, phone: Phone) -> bytes:
    catch_up = CatchUp(task.snapshot, task.tail)
    if task.work == Work.HELLO:
        return phone.hello()
    if task.work == Work.TRAIN:
        return phone.train(task.instruction, catch_up)
    return phone.evaluate(task.instruction, catch_up)
