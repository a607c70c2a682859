"""The ClientApp: thin. It unpacks a message, asks the trainer, and packs the answer.

In a simulation the trainer is in this process, and what a client remembers between messages (its
session) lies in Flower's context, in memory. Live, a process of its own holds trainer and memory,
and this app, which Flower may start anew for every message, only forwards to its socket.
"""

import os
from collections.abc import Callable
from typing import Protocol

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from shared.errors import CatchUpError, SamaraError
from shared.frames.instructions import token_of
from shared.frames.refusal import Refusal
from shared.ledger.catch_up import CatchUp
from shared.wire import PERSONAL_ACTION, RECORD

TRAINER = "trainer"
"""In the node config: the socket of a resident trainer."""
TRAINER_VARIABLE = "SAMARA_TRAINER"
"""Says the same where the node config does not."""

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
    """The reply. Live, an error here goes to Flower: only the trainer knows client and round."""
    socket = context.node_config.get(TRAINER) or os.environ.get(TRAINER_VARIABLE)
    if socket:
        from client.protocol.remote_trainer import RemoteTrainer

        with RemoteTrainer(str(socket), context.run_config) as trainer:
            return _reply(answer(trainer, *unpacked(message)), message)
    from client.protocol.simulated_client import client_index_of, participant

    frame = b""
    try:
        frame, catch_up = unpacked(message)
        return _reply(answer(participant(context), frame, catch_up), message)
    except SamaraError as error:
        refusal = Refusal(token_of(frame), client_index_of(context), 0, str(error))
        return _reply(refusal.encode(), message)


def unpacked(message: Message) -> tuple[bytes, CatchUp]:
    """The instruction in a message, and what came with it.

    Raises:
        CatchUpError: if there is none.
    """
    record = message.content.config_records.get(RECORD, ConfigRecord())
    match [record.get(name, b"") for name in ("frame", "snapshot", "tail")]:
        case [bytes(frame), bytes(snapshot), bytes(tail)]:
            return frame, CatchUp(snapshot, tail)
    raise CatchUpError("the message holds no frame; the server is not a Samara server")


def _reply(frame: bytes, message: Message) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord({"frame": frame})}), reply_to=message)
