"""A device without a model, whose loss is a quadratic function of 2,000 elements.

The device uses all of Samara's frames, catches up by replay, checks every digest, and answers in
milliseconds. Programs about servers therefore spend their time on servers. As on a real device, its
projected gradients are a function of state, seeds and device, since each device has a different
minimum. `app` runs in the in-process engine. `serve` connects it to a real SuperLink, with one
process per device.
"""

import json

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from samara.client.limits.device_settings import CLIENT_INDEX
from samara.client.protocol.session import Session
from samara.shared.errors import SamaraError
from samara.shared.protocol.directions import directions
from samara.shared.protocol.frames.evaluation import Evaluation, EvaluationColumn
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.frames.instructions import (
    EvaluateInstruction,
    TrainInstruction,
    token_of,
)
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.layout import ADAPTER_GROUP, Layout, Tensor
from samara.shared.protocol.ledger.records import CatchUp, LedgerHeader
from samara.shared.protocol.replay import to_float32
from samara.shared.protocol.wire import RECORD

LAYOUT = Layout((Tensor("toy", 2000, 1, ADAPTER_GROUP),), 1, 1.0, 0, "rademacher")
MODEL_ID = bytes(32)
EXAMPLES = 50
_SESSION = "session"

app = ClientApp()


@app.query()
def hello(message: Message, context: Context) -> Message:
    count = int(context.node_config["num-partitions"])
    return _reply(hello_of(_device(context), _session(context), count), message)


@app.train()
def train(message: Message, context: Context) -> Message:
    return _answered(TrainInstruction, message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return _answered(EvaluateInstruction, message, context)


def hello_of(
    device: int,
    session: Session | None,
    clients: int,
    layout: Layout = LAYOUT,
    model_id: bytes = MODEL_ID,
) -> bytes:
    """Return the hello of a toy client as a frame, in a run with the given number of clients."""
    position = session.position.round if session else 0
    facts = json.dumps({"clients": clients})
    return Hello(device, EXAMPLES, position, model_id, layout.to_json(), facts).encode()


def report_of(
    instruction: TrainInstruction, session: Session, device: int, layout: Layout = LAYOUT
) -> Report:
    """Return a toy client's report: ⟨z, x − m⟩ for every direction z and the client's minimum m."""
    minimum = np.random.default_rng(device).normal(size=layout.size)
    slope = to_float32(session.state).astype(float) - minimum
    seeds = instruction.seeds(device)
    z = directions(seeds.ravel(), layout.size, layout.distribution)
    gradients = ((z @ slope) / 2**11).astype(np.float32).reshape(seeds.shape)
    return Report(token_of(instruction.encode()), device, EXAMPLES, float(slope @ slope), gradients)


def answer(
    kind: type[TrainInstruction] | type[EvaluateInstruction],
    frame: bytes,
    catch_up: CatchUp,
    device: int,
    known: Session | None,
    layout: Layout = LAYOUT,
) -> tuple[bytes, Session | None]:
    """Return a toy client's answer to an instruction, and its session afterwards."""
    try:
        asked = kind.decode(frame)
        header = LedgerHeader(asked.track, asked.run_id, asked.layout_hash)
        session = known or Session.begin(header, layout)
        if isinstance(asked, TrainInstruction):
            if session.token == token_of(frame):
                return session.report, session
            goal = asked.round - 1, asked.start_digest
        else:
            goal = asked.round, asked.digest
        session = session.catch_up(catch_up, header, layout, *goal)
        if isinstance(asked, TrainInstruction):
            report = report_of(asked, session, device, layout).encode()
            return report, session.with_report(token_of(frame), report)
        counts = np.array([[10, device % 3], [1, 9]], np.int64)
        column = EvaluationColumn("global", 0.5, counts)
        return Evaluation(token_of(frame), device, (column,)).encode(), session
    except SamaraError as error:
        position = known.position.round if known else 0
        return Refusal.of_error(token_of(frame), device, position, error).encode(), known


def _answered(
    kind: type[TrainInstruction] | type[EvaluateInstruction], message: Message, context: Context
) -> Message:
    record = message.content.config_records[RECORD]
    frame, snapshot, tail = (bytes(record[name]) for name in ("frame", "snapshot", "tail"))  # type: ignore[arg-type]
    said, session = answer(
        kind, frame, CatchUp(snapshot, tail), _device(context), _session(context)
    )
    if session:
        context.state[_SESSION] = ConfigRecord(session.to_bytes())  # type: ignore[arg-type]
    return _reply(said, message)


def _reply(frame: bytes, message: Message) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord({"frame": frame})}), reply_to=message)


def _device(context: Context) -> int:
    return int(context.node_config.get(CLIENT_INDEX, context.node_config["partition-id"]))


def _session(context: Context) -> Session | None:
    record = context.state.config_records.get(_SESSION)
    if record is None:
        return None
    return Session.from_bytes({key: bytes(value) for key, value in record.items()})  # type: ignore[arg-type]
