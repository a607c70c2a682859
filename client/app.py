"""The ClientApp: thin. It unpacks a message, asks the trainer, and packs the answer.

What a client remembers between messages (its session) lies in Flower's context, in memory.
"""

from collections.abc import Callable
from typing import NamedTuple

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client.personalize import compared
from client.session import Session
from client.trainer import Trainer, figures, trainer_for
from shared.config import RunConfig
from shared.errors import CatchUpError, ConfigError, SamaraError
from shared.frames import (
    EvaluateInstruction,
    Evaluation,
    Refusal,
    TrainInstruction,
    token_of,
)
from shared.ledger.catch_up import CatchUp
from shared.ledger.records import LedgerHeader
from shared.wire import PERSONAL_ACTION, RECORD

_SESSION = "session"

app = ClientApp()


class _Place(NamedTuple):
    """What answers a message: the trainer, and which of how many clients this is."""

    config: RunConfig
    trainer: Trainer
    device: int
    clients: int


@app.query()
def hello(message: Message, context: Context) -> Message:
    """Introduce this client: device index, layout, model, position."""

    def answer(frame: bytes, catch_up: CatchUp) -> bytes:
        place = _place(context)
        session = _session(context)
        position = session.position.round if session else 0
        return place.trainer.hello(place.device, place.clients, position).encode()

    return _answered(answer, message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Catch up, train, and report; a repeated instruction gets the stored report."""

    def answer(frame: bytes, catch_up: CatchUp) -> bytes:
        place = _place(context)
        instruction = TrainInstruction.decode(frame)
        token = token_of(frame)
        known = _session(context)
        if known and known.token == token:
            return known.report
        goal = instruction.round - 1, instruction.start_digest
        session = _caught_up(place.trainer, instruction, goal, catch_up, context)
        report = place.trainer.train(instruction, session.state, place.device, place.clients)
        _remember(session.answered(token, report.encode()), context)
        return report.encode()

    return _answered(answer, message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Catch up, and evaluate the global model on the split that is asked for."""

    def answer(frame: bytes, catch_up: CatchUp) -> bytes:
        _, trainer, device, clients = _place(context)
        instruction = EvaluateInstruction.decode(frame)
        goal = instruction.round, instruction.digest
        session = _caught_up(trainer, instruction, goal, catch_up, context)
        data = trainer.share(device, clients, instruction.split)
        column = figures("global", trainer.scores(session.state, data), data.labels)
        return Evaluation(token_of(frame), device, (column,)).encode()

    return _answered(answer, message, context)


@app.evaluate(PERSONAL_ACTION)
def evaluate_personal(message: Message, context: Context) -> Message:
    """Catch up, take the private rounds, and compare on this client's own test examples."""

    def answer(frame: bytes, catch_up: CatchUp) -> bytes:
        config, trainer, device, clients = _place(context)
        instruction = EvaluateInstruction.decode(frame)
        goal = instruction.round, instruction.digest
        session = _caught_up(trainer, instruction, goal, catch_up, context)
        columns = compared(trainer, config, instruction.run_id, session.state, device, clients)
        return Evaluation(token_of(frame), device, columns).encode()

    return _answered(answer, message, context)


def _caught_up(
    trainer: Trainer,
    instruction: TrainInstruction | EvaluateInstruction,
    goal: tuple[int, bytes],
    catch_up: CatchUp,
    context: Context,
) -> Session:
    """The session where the server stands; it is remembered even if what follows fails."""
    trainer.check_layout(instruction.layout_hash)
    header = LedgerHeader(instruction.track, instruction.run_id, instruction.layout_hash)
    session = _session(context) or Session.begin(header, trainer.layout)
    session = session.caught_up(catch_up, header, trainer.layout, *goal, trainer.backend)
    _remember(session, context)
    return session


def _answered(
    answer: Callable[[bytes, CatchUp], bytes], message: Message, context: Context
) -> Message:
    frame = b""
    try:
        frame, catch_up = _unpacked(message)
        return _reply(answer(frame, catch_up), message)
    except SamaraError as error:
        session = _session(context)
        position = session.position.round if session else 0
        refusal = Refusal(token_of(frame), _device(context), position, str(error))
        return _reply(refusal.encode(), message)


def _unpacked(message: Message) -> tuple[bytes, CatchUp]:
    record = message.content.config_records.get(RECORD, ConfigRecord())
    match [record.get(name, b"") for name in ("frame", "snapshot", "tail")]:
        case [bytes(frame), bytes(snapshot), bytes(tail)]:
            return frame, CatchUp(snapshot, tail)
    raise CatchUpError("the message holds no frame; the server is not a Samara server")


def _reply(frame: bytes, message: Message) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord({"frame": frame})}), reply_to=message)


def _device(context: Context) -> int:
    return int(context.node_config.get("partition-id", 0))


def _place(context: Context) -> _Place:
    config = RunConfig.of(context.run_config, "run config")
    missing = [key for key in ("partition-id", "num-partitions") if key not in context.node_config]
    if missing:
        raise ConfigError(
            f"the node config lacks {' and '.join(missing)}; start the SuperNode with "
            '--node-config "partition-id=0 num-partitions=8"'
        )
    clients = int(context.node_config["num-partitions"])
    config = config.among(clients)
    return _Place(config, trainer_for(config), _device(context), clients)


def _session(context: Context) -> Session | None:
    record = context.state.config_records.get(_SESSION)
    if record is None:
        return None
    return Session.from_bytes({key: bytes(value) for key, value in record.items()})  # type: ignore[arg-type]


def _remember(session: Session, context: Context) -> None:
    context.state[_SESSION] = ConfigRecord(session.to_bytes())  # type: ignore[arg-type]
