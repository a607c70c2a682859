"""The gateway's ClientApp, which passes messages on to phones and boards and returns their answers.

Frames pass unchanged. Each answer comes with the key and the signature of its phone or board, so
that the server need not trust the gateway.
"""

import asyncio
import json
import logging
from collections.abc import Coroutine, Mapping
from math import inf
from typing import Any, TypeVar

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from samara.client.app import task_of
from samara.devices.gateway.gateway import Gateway
from samara.devices.gateway.requests import SignedAnswer
from samara.shared.errors import ConfigError
from samara.shared.proto.trainer_pb2 import TaskKind
from samara.shared.protocol.frames.instructions import TrainInstruction
from samara.shared.protocol.frames.refusal import Refusal, describe_servers_refusal
from samara.shared.protocol.wire import (
    ATTACHED,
    BLOB_ACTION,
    CLIENTS,
    FRAMES,
    IN_PARTS,
    KNOWN,
    MASKING_ACTION,
    PENDING,
    PERSONAL_ACTION,
    PUBLIC_KEYS,
    RECORD,
    REFUSED_ACTION,
    SESSION,
    SHARES,
    SIGNATURES,
)
from samara.shared.settings.config import RunConfig
from samara.shared.settings.features import check_features
from samara.shared.settings.runs import identity_bytes

log = logging.getLogger("samara.gateway")

HELLO_SECONDS = 20.0
_OF_A_RUN = TaskKind.HELLO, TaskKind.TRAIN, TaskKind.EVALUATE, TaskKind.MASK
"""Kinds of tasks that carry the settings of their run."""
MARGIN_SECONDS = 5.0
"""Seconds reserved for the gateway's reply to reach the server before the message expires."""
_Answer = TypeVar("_Answer")


def gateway_app(gateway: Gateway, loop: asyncio.AbstractEventLoop) -> ClientApp:
    """Return the ClientApp of a gateway; several threads may call it at the same time.

    Args:
        gateway: gateway to which phones and boards attach.
        loop: event loop of the gateway, which runs in another thread.
    """
    app = ClientApp()
    left_out: set[str] = set()  # reasons for leaving out phones, logged once each

    def wait(question: Coroutine[Any, Any, _Answer]) -> _Answer:
        return asyncio.run_coroutine_threadsafe(question, loop).result()

    def takes_phones(config: RunConfig) -> bool:
        """Return whether phones can take part in a run.

        Raises:
            ConfigError: if phones cannot take part, and no board is attached.
        """
        try:
            check_features(config.features | {"clients": "phone", "engine": "flower"}, "this run")
        except ConfigError as error:
            if not gateway.clients_of(with_phones=False):
                raise
            if str(error) not in left_out:
                left_out.add(str(error))
                log.warning("phones cannot take part in this run: %s", error)
            return False
        return True

    def ask(
        kind: TaskKind,
        message: Message,
        context: Context,
        seconds: float,
        personal: bool = False,
    ) -> Message:
        run_config = json.dumps(dict(context.run_config), sort_keys=True).encode()
        config = RunConfig.of(context.run_config, "run config")
        with_phones = takes_phones(config)
        settings = identity_bytes(config) if kind in _OF_A_RUN else b""
        task = task_of(message, kind, personal, settings)
        record = message.content.config_records[RECORD]
        named = record.get(CLIENTS)
        chosen = _numbers(named) if isinstance(named, list) else gateway.clients_of(with_phones)
        shares = dict(zip(chosen, _frames(record.get(SHARES)), strict=False))
        if kind == TaskKind.REFUSED:
            run_config = b""
        if not record.get(IN_PARTS):
            question = gateway.ask(task, seconds, chosen, shares, run_config)
            return _reply(message, wait(question))
        answers, pending = wait(gateway.ask_for_part(task, seconds, chosen, shares, run_config))
        return _reply(message, answers, {PENDING: pending})

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        """Request a hello from every attached client whose hello the server lacks."""
        run_config = json.dumps(dict(context.run_config), sort_keys=True).encode()
        config = RunConfig.of(context.run_config, "run config")
        task = task_of(message, TaskKind.HELLO, settings=identity_bytes(config))
        attached = gateway.clients_of(takes_phones(config))
        record = message.content.config_records[RECORD]
        staying = gateway.introduced(_numbers(record.get(KNOWN)))
        chosen = sorted(set(attached) - set(staying))
        pending = list[int]()
        if record.get(IN_PARTS):
            part = gateway.ask_for_part(task, HELLO_SECONDS, chosen, None, run_config)
            answers, pending = wait(part)
        else:
            answers = wait(gateway.ask(task, HELLO_SECONDS, chosen, None, run_config))
        staying = gateway.introduced(staying)
        told = {ATTACHED: staying, SESSION: gateway.session, PENDING: pending}
        return _reply(message, answers, told)

    @app.query(BLOB_ACTION)
    def receive_blob(message: Message, context: Context) -> Message:
        """Pass a part of a blob on to the named phones."""
        return ask(TaskKind.BLOB, message, context, _left(message))

    @app.query(MASKING_ACTION)
    def mask(message: Message, context: Context) -> Message:
        """Pass a frame of secure aggregation on to the named phones."""
        return ask(TaskKind.MASK, message, context, _left(message))

    @app.query(REFUSED_ACTION)
    def hear_refusal(message: Message, context: Context) -> Message:
        """Log the server's reason for refusing the named phones, and pass the reason on to them."""
        frame = task_of(message, TaskKind.REFUSED).instruction
        phones = message.content.config_records[RECORD].get(CLIENTS)
        reason = describe_servers_refusal(Refusal.decode(frame).code)
        log.warning("phone %s: %s", ", ".join(map(str, _numbers(phones))), reason)
        return ask(TaskKind.REFUSED, message, context, HELLO_SECONDS)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Request catch-up, training and a report from the named phones."""
        frame = task_of(message, TaskKind.TRAIN).instruction
        deadline = TrainInstruction.decode(frame).deadline or inf
        # A message may expire after its round, so that late reports still arrive.
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


def _reply(
    message: Message, answers: Mapping[int, SignedAnswer], more: Mapping[str, Any] | None = None
) -> Message:
    signed = [answers[device] for device in sorted(answers)]
    record = ConfigRecord(
        {
            FRAMES: [answer.frame for answer in signed],
            PUBLIC_KEYS: [answer.public_key for answer in signed],
            SIGNATURES: [answer.signature for answer in signed],
            **(more or {}),
        }
    )
    return Message(RecordDict({RECORD: record}), reply_to=message)


def _left(message: Message) -> float:
    """Return the seconds that remain for phones to answer a message."""
    return max(1.0, float(message.metadata.ttl) - MARGIN_SECONDS)
