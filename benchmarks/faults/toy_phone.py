"""A phone without a model, for programs about gateways, with the toy client's answers."""

from benchmarks.faults.toy_client import answer, hello_of
from samara.client.protocol.session import Session
from samara.shared.errors import FrameError
from samara.shared.proto.trainer_pb2 import Task, TaskKind
from samara.shared.protocol.frames.instructions import (
    EvaluateInstruction,
    TrainInstruction,
    token_of,
)
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.ledger.records import CatchUp


class ToyPhone:
    """A phone for `samara.devices.live.connection.gateway_stream.attach`.

    Args:
        client: client index.
        clients: number of clients in the phone's hello.

    Attributes:
        session: the phone's latest session of the run; None before the first instruction.
        answered: number of answered instructions.
    """

    def __init__(self, client: int, clients: int) -> None:
        self.session: Session | None = None
        self.answered = 0
        self._client, self._clients = client, clients

    def answer(self, task: Task) -> bytes:
        """Return the phone's hello, report or evaluation; refuse blob parts, echo notices."""
        match task.kind:
            case TaskKind.HELLO:
                return hello_of(self._client, self.session, self._clients)
            case TaskKind.REFUSED:
                return task.instruction
            case TaskKind.BLOB:
                error = FrameError("a toy phone needs no blob")
                return Refusal.of_error(token_of(task.instruction), self._client, 0, error).encode()
        kind = TrainInstruction if task.kind == TaskKind.TRAIN else EvaluateInstruction
        self.answered += 1
        said, self.session = answer(
            kind, task.instruction, CatchUp(task.snapshot, task.tail), self._client, self.session
        )
        return said
