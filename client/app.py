"""The ClientApp, which turns a message into a task and returns the reply as a message.

In a simulation the client runs in this process, and its sessions are stored in Flower's context, in
memory. For a live client, a resident trainer holds model and sessions, because Flower may start the
app again for every message. The app then forwards messages to the trainer's socket.
"""

import json
import logging
import os
from collections.abc import Callable

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from samara.client.protocol.client import make_refusal
from samara.shared.errors import FrameError, SamaraError
from samara.shared.flower_compat import ErrorCode
from samara.shared.proto.trainer_pb2 import Reply, Task, TaskKind
from samara.shared.protocol.frames.refusal import describe_refusal
from samara.shared.protocol.wire import (
    BLOB_ACTION,
    COST,
    MASKING_ACTION,
    PERSONAL_ACTION,
    RECORD,
    REFUSED_ACTION,
    SHARES,
)

TRAINER = "trainer"
"""Key of the node config whose value is the path of a resident trainer's socket."""
TRAINER_VARIABLE = "SAMARA_TRAINER"
"""Environment variable with the path of the socket, used if the node config lacks the key."""

log = logging.getLogger("samara.client")


def task_of(
    message: Message, kind: TaskKind, personal: bool = False, settings: bytes = b""
) -> Task:
    """Return the task in a message.

    Args:
        message: message of a server.
        kind: kind of the task.
        personal: whether the message requests the personal comparison.
        settings: settings of the run.

    Raises:
        FrameError: if the message holds no frame.
    """
    record = message.content.get(RECORD)
    if not isinstance(record, ConfigRecord):
        record = ConfigRecord()
    shares = record.get(SHARES)
    match [record.get(name, b"") for name in ("frame", "snapshot", "tail")]:
        case [bytes(frame), bytes(snapshot), bytes(tail)]:
            return Task(
                kind=kind,
                instruction=frame,
                snapshot=snapshot,
                tail=tail,
                settings=settings,
                personal=personal,
                shares=shares if isinstance(shares, bytes) else b"",
            )
    raise FrameError("the message holds no frame; connect to a Samara server")


def _answering(kind: TaskKind, personal: bool = False) -> Callable[[Message, Context], Message]:
    """Return a function that answers messages of one kind.

    A refusal must name the client and the round. If the resident trainer cannot be reached, both
    are unknown, and the reply is an error reply of Flower instead. Neither kind of reply contains
    the error's text.
    """

    def answer(message: Message, context: Context) -> Message:
        socket = context.node_config.get(TRAINER) or os.environ.get(TRAINER_VARIABLE)
        if not socket:
            return _pack(_simulated_answer(message, kind, personal, context), message)
        from samara.client.trainer.remote_trainer import RemoteTrainer

        settings = json.dumps(dict(context.run_config), sort_keys=True).encode()
        try:
            with RemoteTrainer(str(socket)) as trainer:
                task = task_of(message, kind, personal, settings)
                return _pack(trainer.answer(task), message)
        except SamaraError as error:
            log.warning("%s: %s", message.metadata.message_type, error)
            return error_reply(error, message)

    return answer


def _simulated_answer(message: Message, kind: TaskKind, personal: bool, context: Context) -> Reply:
    from samara.client.protocol.simulated_client import client_index_of, simulated_client

    frame = b""
    try:
        task = task_of(message, kind, personal)
        frame = task.instruction
        client = simulated_client(context)
    except SamaraError as error:
        return Reply(frame=make_refusal(frame, client_index_of(context), 0, error))
    return Reply(frame=client.answer(task))


def error_reply(error: Exception, message: Message) -> Message:
    """Return Flower's error reply with an error's code, but without the error's text."""
    described = error if isinstance(error, SamaraError) else SamaraError()
    reason = describe_refusal(described.refusal_code, described.numbers)
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def _pack(reply: Reply, message: Message) -> Message:
    record = ConfigRecord({"frame": reply.frame})
    if reply.cost:
        record[COST] = reply.cost
    return Message(RecordDict({RECORD: record}), reply_to=message)


app = ClientApp()
app.query()(_answering(TaskKind.HELLO))
app.query(BLOB_ACTION)(_answering(TaskKind.BLOB))
app.query(MASKING_ACTION)(_answering(TaskKind.MASK))
app.query(REFUSED_ACTION)(_answering(TaskKind.REFUSED))
app.train()(_answering(TaskKind.TRAIN))
app.evaluate()(_answering(TaskKind.EVALUATE))
app.evaluate(PERSONAL_ACTION)(_answering(TaskKind.EVALUATE, personal=True))
