"""What every client does with a frame, whoever computes its losses: stand, answer, or refuse."""

import logging
from collections.abc import Callable
from typing import Protocol

from client.protocol.session import Session
from shared.errors import SamaraError
from shared.frames.instructions import EvaluateInstruction, TrainInstruction, token_of
from shared.frames.refusal import Refusal
from shared.frames.report import Report
from shared.layout import Layout
from shared.ledger.catch_up import CatchUp
from shared.ledger.records import LedgerHeader
from shared.replay import Backend
from shared.wire import Kind, kind_of

log = logging.getLogger("samara.client")

Instruction = TrainInstruction | EvaluateInstruction


class Memory(Protocol):
    """Where a client keeps its sessions between messages."""

    def session(self, run_id: bytes) -> Session | None:
        """The session of a run; None if it has seen none of its rounds."""

    def remember(self, run_id: bytes, session: Session) -> None:
        """Keep the session of a run."""


class Replaying(Protocol):
    """A trainer, as far as replay goes."""

    @property
    def layout(self) -> Layout:
        """Of the adapter."""

    @property
    def backend(self) -> Backend:
        """What replays."""

    def check_layout(self, layout_hash: bytes) -> None:
        """Refuse an instruction for another adapter."""


def standing(
    memory: Memory, trainer: Replaying, instruction: Instruction, catch_up: CatchUp
) -> Session:
    """The session at an instruction's start.

    Args:
        memory: of the client; nothing is kept in it.
        trainer: its layout, and what replays.
        instruction: says where the server stands.
        catch_up: from the server; an empty one if the session must be there already.

    Raises:
        CatchUpError: if it cannot be reached.
    """
    trainer.check_layout(instruction.layout_hash)
    layout, run_id = trainer.layout, instruction.run_id
    header = LedgerHeader(instruction.track, run_id, instruction.layout_hash)
    session = memory.session(run_id) or Session.begin(header, layout)
    if isinstance(instruction, TrainInstruction):
        goal = instruction.round - 1, instruction.start_digest
    else:
        goal = instruction.round, instruction.digest
    return session.caught_up(catch_up, header, layout, *goal, trainer.backend)


def make_refusal(instruction: bytes, client: int, last_round: int, error: SamaraError) -> bytes:
    """Log an error, and return the refusal that names it by its code and numbers.

    The error's text stays in this log: it may hold paths or quote a row of the client's data.

    Args:
        instruction: the refused frame; empty for a hello.
        client: client index.
        last_round: the last round in the client's state.
        error: the reason.
    """
    log.warning("client %d refuses: %s", client, error)
    return Refusal.of_error(token_of(instruction), client, last_round, error).encode()


class Answering:
    """A client whose every answer is a frame; a refusal frame where something is wrong.

    Args:
        client: index of this client.
        memory: where its sessions are.
    """

    def __init__(self, client: int, memory: Memory) -> None:
        self._device, self._memory = client, memory

    def refuse(self, instruction: bytes, error: SamaraError) -> bytes:
        """Log an error, and return a refusal with its code and this client's last round."""
        return make_refusal(instruction, self._device, self._position(instruction), error)

    def _sound(self, instruction: bytes, answer: Callable[[], bytes]) -> bytes:
        try:
            return answer()
        except SamaraError as error:
            return self.refuse(instruction, error)

    def _reported(
        self,
        frame: bytes,
        trained: Callable[[TrainInstruction, Session], Report],
        stand: Callable[[TrainInstruction], Session],
    ) -> bytes:
        """The report on a train instruction, kept before it is given; a repeated one gets it again.

        Args:
            frame: the instruction.
            trained: the local steps from a session.
            stand: the session at the instruction's start.
        """
        instruction, token = TrainInstruction.decode(frame), token_of(frame)
        known = self._memory.session(instruction.run_id)
        if known and known.token == token:
            return known.report
        session = stand(instruction)
        answered = session.answered(token, trained(instruction, session).encode())
        self._memory.remember(instruction.run_id, answered)
        return answered.report

    def _position(self, frame: bytes) -> int:
        """The last round in this client's state, so that the server can send what is missing."""
        try:
            session = self._memory.session(decoded(frame).run_id)
        except SamaraError:
            return 0
        return session.position.round if session else 0


def decoded(frame: bytes) -> Instruction:
    """A frame that asks for training, or for an evaluation.

    Raises:
        FrameError: if it is neither.
    """
    if kind_of(frame) is Kind.TRAIN:
        return TrainInstruction.decode(frame)
    return EvaluateInstruction.decode(frame)
