"""A phone's stream to its gateway: prove the key, then answer what is asked, and come back."""

import logging
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc

from devices.phone.reference_client.phone import Phone
from shared.errors import DeviceError
from shared.ledger.catch_up import CatchUp
from shared.proto.trainer_pb2 import Done, FromPhone, Proof, Task, ToPhone, Work
from shared.proto.trainer_pb2_grpc import GatewayStub
from shared.signing import PhoneKey, of_answer, of_proof
from shared.wire import MAX_FRAME_BYTES

log = logging.getLogger("samara.phone")

PROTOCOL = 1
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds before a stream that broke is opened again: twice as long each time, and half more."""
OPTIONS = (
    ("grpc.max_receive_message_length", 2 * MAX_FRAME_BYTES + 2**20),
    # the gateway answers a ping once a minute at most
    ("grpc.keepalive_time_ms", 240_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)
_FINAL = {
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
}
"""Coming back would not help."""


@dataclass(frozen=True)
class Door:
    """Where a gateway is.

    Attributes:
        address: host:port.
        authority: PEM of the certificate authority; None takes the system's.
        insecure: plain text.
    """

    address: str
    authority: Path | None = None
    insecure: bool = False

    def channel(self) -> Any:
        """A connection.

        Raises:
            DeviceError: if the authority cannot be read.
        """
        if self.insecure:
            return grpc.insecure_channel(self.address, OPTIONS)
        try:
            authority = self.authority.read_bytes() if self.authority else None
        except OSError as error:
            raise DeviceError(f"{self.authority}: cannot be read: {error.strerror}") from error
        credentials = grpc.ssl_channel_credentials(authority)
        return grpc.secure_channel(self.address, credentials, OPTIONS)


def attach(phone: Phone, key: PhoneKey, door: Door, stop: threading.Event) -> None:
    """Stay attached until told to stop; a stream that breaks is opened again.

    Raises:
        DeviceError: if the gateway does not admit this phone, or speaks another protocol.
    """
    failures = 0
    while not stop.is_set():
        try:
            with door.channel() as channel:
                for _ in answered(phone, key, GatewayStub(channel)):
                    failures = 0
                    if stop.is_set():
                        return
        except grpc.RpcError as error:
            if error.code() in _FINAL:
                raise DeviceError(
                    f"{door.address}: the gateway turns this phone away: {error.details()}"
                ) from error
            log.warning("%s: %s: %s", door.address, error.code().name.lower(), error.details())
        pause = min(FIRST_PAUSE * 2.0**failures, LONGEST_PAUSE) * random.uniform(1, 1.5)
        failures += 1
        stop.wait(pause)


def answered(phone: Phone, key: PhoneKey, stub: Any) -> Iterator[int]:
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
        signature = key.sign(of_proof(said.challenge.nonce))
        return FromPhone(proof=Proof(public_key=key.public, signature=signature)), 0
    task = said.task
    frame = _frame(task, phone)
    signature = key.sign(of_answer(task.instruction, frame))
    return FromPhone(done=Done(number=task.number, frame=frame, signature=signature)), task.number


def _frame(task: Task, phone: Phone) -> bytes:
    catch_up = CatchUp(task.snapshot, task.tail)
    if task.work == Work.HELLO:
        return phone.hello()
    if task.work == Work.TRAIN:
        return phone.train(task.instruction, catch_up)
    return phone.evaluate(task.instruction, catch_up)
