"""The ClientApp: unpacks a message, calls the client, and packs its reply.

In a simulation the client is in this process, and its sessions are kept in Flower's context, in
memory. Live, a resident trainer holds model and sessions, and this app, which Flower may start anew
for every message, forwards to its socket.
"""

import logging
import os
from collections.abc import Callable
from typing import Protocol

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from samara.client.protocol.client_handler import make_refusal
from samara.shared.errors import FrameError, SamaraError
from samara.shared.flower_compat import ErrorCode
from samara.shared.frames.refusal import Refusal, describe_refusal, describe_servers_refusal
from samara.shared.ledger.records import CatchUp
from samara.shared.wire import (
    BLOB_ACTION,
    COST,
    MASKING_ACTION,
    PERSONAL_ACTION,
    RECORD,
    REFUSED_ACTION,
    SHARES,
)

TRAINER = "trainer"
"""Key in the node config of the path of a resident trainer's socket."""
TRAINER_VARIABLE = "SAMARA_TRAINER"
"""Environment variable with that path, for a node config without it."""

log = logging.getLogger("samara.client")

app = ClientApp()


class ProtocolEndpoint(Protocol):
    """Interface of a `ProtocolClient`, in this process or behind a `RemoteTrainer`."""

    def hello(self) -> bytes: ...  # noqa: D102

    def catch_up(self, instruction: bytes, catch_up: CatchUp) -> bytes: ...  # noqa: D102

    def train(self, instruction: bytes) -> bytes: ...  # noqa: D102

    def evaluate(self, instruction: bytes, personal: bool) -> bytes: ...  # noqa: D102

    def receive_blob(self, part: bytes) -> bytes: ...  # noqa: D102

    def mask(self, frame: bytes) -> bytes: ...  # noqa: D102


@app.query()
def hello(message: Message, context: Context) -> Message:
    """Introduce this client: client index, layout, model, round."""
    return _handle(lambda client, frame, catch_up: client.hello(), message, context)


@app.query(BLOB_ACTION)
def receive_blob(message: Message, context: Context) -> Message:
    """Keep a part of a file that the run needs, and answer with a receipt."""
    return _handle(lambda client, frame, catch_up: client.receive_blob(frame), message, context)


@app.query(MASKING_ACTION)
def mask(message: Message, context: Context) -> Message:
    """Take part in the secure aggregation of a round."""
    return _handle(lambda client, frame, catch_up: client.mask(frame), message, context)


@app.query(REFUSED_ACTION)
def hear_refusal(message: Message, context: Context) -> Message:
    """Log why the server refuses this client."""
    try:
        frame, _ = unpack_message(message)
        log.warning("%s", describe_servers_refusal(Refusal.decode(frame).code))
    except SamaraError as error:
        return error_reply(error, message)
    return _pack(frame, message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Catch up, train, and report; a repeated instruction gets the stored report."""

    def reply(client: ProtocolEndpoint, frame: bytes, catch_up: CatchUp) -> bytes:
        shares = message.content.config_records[RECORD].get(SHARES)
        refusal = client.mask(shares) if isinstance(shares, bytes) else b""
        return refusal or client.catch_up(frame, catch_up) or client.train(frame)

    return _handle(reply, message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Catch up, and evaluate the global model on the instruction's split."""

    def reply(client: ProtocolEndpoint, frame: bytes, catch_up: CatchUp) -> bytes:
        return client.catch_up(frame, catch_up) or client.evaluate(frame, personal=False)

    return _handle(reply, message, context)


@app.evaluate(PERSONAL_ACTION)
def evaluate_personal(message: Message, context: Context) -> Message:
    """Catch up, take the private rounds, and evaluate the personal model and its baselines."""

    def reply(client: ProtocolEndpoint, frame: bytes, catch_up: CatchUp) -> bytes:
        return client.catch_up(frame, catch_up) or client.evaluate(frame, personal=True)

    return _handle(reply, message, context)


def _handle(
    reply: Callable[[ProtocolEndpoint, bytes, CatchUp], bytes], message: Message, context: Context
) -> Message:
    """Return the reply to a message.

    If the resident trainer cannot be reached, nobody here knows client and round, which a refusal
    must name: then the reply is an error of Flower's, which holds no text of ours either.
    """
    socket = context.node_config.get(TRAINER) or os.environ.get(TRAINER_VARIABLE)
    if socket:
        from samara.client.protocol.remote_trainer import RemoteTrainer

        try:
            with RemoteTrainer(str(socket), context.run_config) as client:
                frame = reply(client, *unpack_message(message))
                return _pack(frame, message, client.cost)
        except SamaraError as error:
            log.warning("%s: %s", message.metadata.message_type, error)
            return error_reply(error, message)
    from samara.client.protocol.simulated_client import client_index_of, simulated_client

    frame = b""
    try:
        frame, catch_up = unpack_message(message)
        return _pack(reply(simulated_client(context), frame, catch_up), message)
    except SamaraError as error:
        return _pack(make_refusal(frame, client_index_of(context), 0, error), message)


def unpack_message(message: Message) -> tuple[bytes, CatchUp]:
    """Return the frame in a message, and the missed rounds that came with it.

    Raises:
        FrameError: if the message holds no frame.
    """
    record = message.content.config_records.get(RECORD, ConfigRecord())
    match [record.get(name, b"") for name in ("frame", "snapshot", "tail")]:
        case [bytes(frame), bytes(snapshot), bytes(tail)]:
            return frame, CatchUp(snapshot, tail)
    raise FrameError("the message holds no frame; the server is not a Samara server")


def error_reply(error: Exception, message: Message) -> Message:
    """Return a reply of Flower's that names an error by its code, without its text."""
    described = error if isinstance(error, SamaraError) else SamaraError()
    reason = describe_refusal(described.refusal_code, described.numbers)
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def _pack(frame: bytes, message: Message, cost: bytes = b"") -> Message:
    record = ConfigRecord({"frame": frame})
    if cost:
        record[COST] = cost
    return Message(RecordDict({RECORD: record}), reply_to=message)
