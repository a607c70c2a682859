"""The gateway's ClientApp: it passes a message on to phones and returns their answers in one reply.

Frames pass unchanged. Beside each answer are the phone's key and signature, so that the server can
check which phone sent it without trusting the gateway.
"""

import asyncio
import logging
from collections.abc import Mapping
from math import inf

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client.app import unpack_message
from devices.phone.gateway import Gateway, SignedAnswer
from shared.config import RunConfig
from shared.features import check_features
from shared.frames.instructions import TrainInstruction
from shared.frames.refusal import Refusal, describe_servers_refusal
from shared.proto.trainer_pb2 import Task, TaskKind
from shared.runs import identity_bytes
from shared.wire import (
    BLOB_ACTION,
    CLIENTS,
    FRAMES,
    MASKING_ACTION,
    PERSONAL_ACTION,
    PUBLIC_KEYS,
    RECORD,
    REFUSED_ACTION,
    SHARES,
    SIGNATURES,
)

log = logging.getLogger("samara.gateway")

HELLO_SECONDS = 20.0
_OF_A_RUN = TaskKind.HELLO, TaskKind.TRAIN, TaskKind.EVALUATE, TaskKind.MASK
"""Tasks that come with the settings of their run."""
MARGIN_SECONDS = 5.0
"""Seconds before a message expires that are left for the reply to reach the server."""


def gateway_app(gateway: Gateway, loop: asyncio.AbstractEventLoop) -> ClientApp:
    """Return the ClientApp of a gateway.

    Args:
        gateway: gateway that the phones attach to.
        loop: event loop of the gateway, which runs in another thread.
    """
    app = ClientApp()

    def ask(
        kind: TaskKind,
        message: Message,
        context: Context,
        seconds: float,
        personal: bool = False,
    ) -> Message:
        config = RunConfig.of(context.run_config, "run config")
        check_features(config.features | {"clients": "phone", "engine": "flower"}, "this run")
        frame, catch_up = unpack_message(message)
        record = message.content.config_records[RECORD]
        devices = record.get(CLIENTS)
        chosen = _numbers(devices) if isinstance(devices, list) else None
        task = Task(
            kind=kind,
            instruction=frame,
            snapshot=catch_up.snapshot,
            tail=catch_up.tail,
            settings=identity_bytes(config) if kind in _OF_A_RUN else b"",
            personal=personal,
        )
        shares = dict(zip(chosen or (), _frames(record.get(SHARES)), strict=False))
        question = gateway.ask(task, seconds, chosen, shares)
        answers = asyncio.run_coroutine_threadsafe(question, loop).result()
        return Message(RecordDict({RECORD: _record(answers)}), reply_to=message)

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        """Request a hello from every attached phone."""
        return ask(TaskKind.HELLO, message, context, HELLO_SECONDS)

    @app.query(BLOB_ACTION)
    def receive_blob(message: Message, context: Context) -> Message:
        """Pass a part of a file that the run needs on to the named phones."""
        return ask(TaskKind.BLOB, message, context, _left(message))

    @app.query(MASKING_ACTION)
    def mask(message: Message, context: Context) -> Message:
        """Pass a frame of secure aggregation on to the named phones."""
        return ask(TaskKind.MASK, message, context, _left(message))

    @app.query(REFUSED_ACTION)
    def hear_refusal(message: Message, context: Context) -> Message:
        """Log why the server refuses the named phones, and tell them."""
        frame, _ = unpack_message(message)
        phones = message.content.config_records[RECORD].get(CLIENTS)
        reason = describe_servers_refusal(Refusal.decode(frame).code)
        log.warning("phone %s: %s", ", ".join(map(str, _numbers(phones))), reason)
        return ask(TaskKind.REFUSED, message, context, HELLO_SECONDS)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Request catch-up, training and a report from the named phones."""
        frame, _ = unpack_message(message)
        deadline = TrainInstruction.decode(frame).deadline or inf
        # a message may expire after its round, for late reports
        seconds = max(1.0, min(_left(message), deadline - MARGIN_SECONDS))
        return ask(TaskKind.TRAIN, message, context, seconds)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        """Request catch-up and an evaluation of the global model from the named phones."""
        return ask(TaskKind.EVALUATE, message, context, _left(message))

    @app.evaluate(PERSONAL_ACTION)
    def evaluate_personal(message: Message, context: Context) -> Message:
        """Request catch-up, private rounds and the personal comparison from the named phones."""
        return ask(TaskKind.EVALUATE, message, context, _left(message), personal=True)

    return app


def _numbers(phones: object) -> list[int]:
    return [int(phone) for phone in phones] if isinstance(phones, list) else []


def _frames(parts: object) -> list[bytes]:
    return [bytes(part) for part in parts] if isinstance(parts, list) else []


def _record(answers: Mapping[int, SignedAnswer]) -> ConfigRecord:
    signed = [answers[device] for device in sorted(answers)]
    return ConfigRecord(
        {
            FRAMES: [answer.frame for answer in signed],
            PUBLIC_KEYS: [answer.public_key for answer in signed],
            SIGNATURES: [answer.signature for answer in signed],
        }
    )


def _left(message: Message) -> float:
    """Return the seconds in which phones may answer a message."""
    return max(1.0, float(message.metadata.ttl) - MARGIN_SECONDS)
