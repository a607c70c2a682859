"""The ClientApp: thin. It unpacks a message, asks the trainer, and packs the answer.

In a simulation the trainer is in this process, and what a client remembers between messages (its
session) lies in Flower's context, in memory. Live, a process of its own holds trainer and memory,
and this app, which Flower may start anew for every message, only forwards to its socket.
"""

import logging
import os
from collections.abc import Callable
from typing import Protocol

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from client.protocol.client_handler import make_refusal
from shared.errors import FrameError, SamaraError
from shared.flower_compat import ErrorCode
from shared.frames.refusal import describe_refusal
from shared.ledger.catch_up import CatchUp
from shared.wire import PERSONAL_ACTION, RECORD

TRAINER = "trainer"
"""In the node config: the socket of a resident trainer."""
TRAINER_VARIABLE = "SAMARA_TRAINER"
"""Says the same where the node config does not."""

log = logging.getLogger("samara.client")

app = ClientApp()


class Answering(Protocol):
    """What answers a message: a `ProtocolClient`, in this process or behind a socket."""

    def hello(self) -> bytes: ...  # noqa: D102

    def catch_up(self, instruction: bytes, catch_up: CatchUp) -> bytes: ...  # noqa: D102

    def train(self, instruction: bytes) -> bytes: ...  # noqa: D102

    def evaluate(self, instruction: bytes, personal: bool) -> bytes: ...  # noqa: D102


@app.query()
def hello(message: Message, context: Context) -> Message:
    """Introduce this client: client index, layout, model, position."""
    return _answered(lambda trainer, frame, catch_up: trainer.hello(), message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Catch up, train, and report; a repeated instruction gets the stored report."""

    def answer(trainer: Answering, frame: bytes, catch_up: CatchUp) -> bytes:
        return trainer.catch_up(frame, catch_up) or trainer.train(frame)

    return _answered(answer, message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Catch up, and evaluate the global model on the split that is asked for."""

    def answer(trainer: Answering, frame: bytes, catch_up: CatchUp) -> bytes:
        return trainer.catch_up(frame, catch_up) or trainer.evaluate(frame, personal=False)

    return _answered(answer, message, context)


@app.evaluate(PERSONAL_ACTION)
def evaluate_personal(message: Message, context: Context) -> Message:
    """Catch up, take the private rounds, and compare on this client's own test examples."""

    def answer(trainer: Answering, frame: bytes, catch_up: CatchUp) -> bytes:
        return trainer.catch_up(frame, catch_up) or trainer.evaluate(frame, personal=True)

    return _answered(answer, message, context)


def _answered(
    answer: Callable[[Answering, bytes, CatchUp], bytes], message: Message, context: Context
) -> Message:
    """Return the reply to a message.

    If the resident trainer cannot be reached, nobody here knows client and round, which a refusal
    must name: then the reply is an error of Flower's, which holds no text of ours either.
    """
    socket = context.node_config.get(TRAINER) or os.environ.get(TRAINER_VARIABLE)
    if socket:
        from client.protocol.remote_trainer import RemoteTrainer

        try:
            with RemoteTrainer(str(socket), context.run_config) as trainer:
                return _reply(answer(trainer, *unpacked(message)), message)
        except SamaraError as error:
            log.warning("%s: %s", message.metadata.message_type, error)
            return error_reply(error, message)
    from client.protocol.simulated_client import client_index_of, participant

    frame = b""
    try:
        frame, catch_up = unpacked(message)
        return _reply(answer(participant(context), frame, catch_up), message)
    except SamaraError as error:
        return _reply(make_refusal(frame, client_index_of(context), 0, error), message)


def unpacked(message: Message) -> tuple[bytes, CatchUp]:
    """The instruction in a message, and what came with it.

    Raises:
        FrameError: if there is none.
    """
    record = message.content.config_records.get(RECORD, ConfigRecord())
    match [record.get(name, b"") for name in ("frame", "snapshot", "tail")]:
        case [bytes(frame), bytes(snapshot), bytes(tail)]:
            return frame, CatchUp(snapshot, tail)
    raise FrameError("the message holds no frame; the server is not a Samara server")


def error_reply(error: Exception, message: Message) -> Message:
    """Return a reply of Flower's that names an error by its code, without its text."""
    known = error if isinstance(error, SamaraError) else SamaraError()
    reason = describe_refusal(known.refusal_code, known.numbers)
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def _reply(frame: bytes, message: Message) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord({"frame": frame})}), reply_to=message)
