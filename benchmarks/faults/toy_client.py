"""A device without a model: a quadratic whose minimum is the device's own, in 2,000 elements.

It speaks Samara's frames in full, catches up by replay, checks every digest, and answers in
milliseconds, so that scripts about servers spend their time on servers. Its projected gradients
are a function of state, seeds and device, as a real device's are. `app` runs in the in-process
engine; `serve` connects it to a real SuperLink as one process per device.
"""

import json
from collections.abc import Callable

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client.protocol.device_settings import CLIENT_INDEX
from client.protocol.session import Session
from shared.directions import directions
from shared.errors import SamaraError
from shared.frames.evaluation import Evaluation, EvaluationColumn
from shared.frames.hello import Hello
from shared.frames.instructions import EvaluateInstruction, TrainInstruction, token_of
from shared.frames.refusal import Refusal
from shared.frames.report import Report
from shared.layout import ADAPTER_GROUP, Layout, Tensor
from shared.ledger.catch_up import CatchUp
from shared.ledger.records import LedgerHeader
from shared.replay import to_float32
from shared.wire import RECORD

LAYOUT = Layout((Tensor("toy", 2000, 1, ADAPTER_GROUP),), 1, 1.0, 0, "rademacher")
MODEL_ID = bytes(32)
EXAMPLES = 50
_SESSION = "session"

app = ClientApp()


@app.query()
def hello(message: Message, context: Context) -> Message:
    session = _session(context)
    position = session.position.round if session else 0
    facts = json.dumps({"clients": int(context.node_config["num-partitions"])})
    said = Hello(_device(context), EXAMPLES, position, MODEL_ID, LAYOUT.to_json(), facts)
    return _reply(said.encode(), message)


@app.train()
def train(message: Message, context: Context) -> Message:
    return _answered(TrainInstruction.decode, message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return _answered(EvaluateInstruction.decode, message, context)


def report_of(instruction: TrainInstruction, session: Session, device: int) -> Report:
    """Return the report of a toy client: ⟨z, x − m⟩ for every direction z and its own minimum m."""
    minimum = np.random.default_rng(device).normal(size=LAYOUT.size)
    slope = to_float32(session.state).astype(float) - minimum
    seeds = instruction.seeds(device)
    z = directions(seeds.ravel(), LAYOUT.size, LAYOUT.distribution)
    gradients = ((z @ slope) / 2**11).astype(np.float32).reshape(seeds.shape)
    return Report(token_of(instruction.encode()), device, EXAMPLES, float(slope @ slope), gradients)


def _answered(
    decode: Callable[[bytes], TrainInstruction | EvaluateInstruction],
    message: Message,
    context: Context,
) -> Message:
    record = message.content.config_records[RECORD]
    frame, snapshot, tail = (bytes(record[name]) for name in ("frame", "snapshot", "tail"))  # type: ignore[arg-type]
    device = _device(context)
    try:
        asked = decode(frame)
        header = LedgerHeader(asked.track, asked.run_id, asked.layout_hash)
        session = _session(context) or Session.begin(header, LAYOUT)
        if isinstance(asked, TrainInstruction):
            if session.token == token_of(frame):
                return _reply(session.report, message)
            goal = asked.round - 1, asked.start_digest
        else:
            goal = asked.round, asked.digest
        session = session.catch_up(CatchUp(snapshot, tail), header, LAYOUT, *goal)
        if isinstance(asked, TrainInstruction):
            answer = report_of(asked, session, device).encode()
            session = session.with_report(token_of(frame), answer, asked.round)
        else:
            counts = np.array([[10, device % 3], [1, 9]], np.int64)
            column = EvaluationColumn("global", 0.5, counts)
            answer = Evaluation(token_of(frame), device, (column,)).encode()
        context.state[_SESSION] = ConfigRecord(session.to_bytes())  # type: ignore[arg-type]
        return _reply(answer, message)
    except SamaraError as error:
        known = _session(context)
        position = known.position.round if known else 0
        return _reply(Refusal.of_error(token_of(frame), device, position, error).encode(), message)


def _reply(frame: bytes, message: Message) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord({"frame": frame})}), reply_to=message)


def _device(context: Context) -> int:
    return int(context.node_config.get(CLIENT_INDEX, context.node_config["partition-id"]))


def _session(context: Context) -> Session | None:
    record = context.state.config_records.get(_SESSION)
    if record is None:
        return None
    return Session.from_bytes({key: bytes(value) for key, value in record.items()})  # type: ignore[arg-type]
