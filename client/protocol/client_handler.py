"""The client handler: sessions, stored reports and refusals, for every kind of client.

How losses are computed is left to subclasses: a `ProtocolClient` has a model runtime, a phone its
program.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from samara.client.protocol.answer_guard import AnswerGuard
from samara.client.protocol.answer_log import AnswerLog
from samara.client.protocol.private_report import without_examples
from samara.client.protocol.session import Session
from samara.client.protocol.shared_catch_up import Reach
from samara.client.protocol.signed_runs import SignedRuns
from samara.shared.errors import SamaraError
from samara.shared.frames.evaluation import Evaluation, EvaluationColumn
from samara.shared.frames.instructions import (
    GLOBAL_TRACK,
    INTERCEPT_TRACK,
    EvaluateInstruction,
    TrainInstruction,
    token_of,
)
from samara.shared.frames.refusal import Refusal
from samara.shared.frames.report import Report
from samara.shared.frames.vector_report import AnyVectorReport, MaskedReport
from samara.shared.layout import Layout
from samara.shared.ledger.records import CatchUp, LedgerHeader
from samara.shared.replay import Backend
from samara.shared.wire import Kind, kind_of

log = logging.getLogger("samara.client")

Instruction = TrainInstruction | EvaluateInstruction


class SessionStore(Protocol):
    """A store of a client's sessions between messages."""

    def read_session(self, run_id: bytes) -> Session | None:
        """Return the session of a run; None if the client has replayed none of its rounds."""

    def write_session(self, run_id: bytes, session: Session) -> None:
        """Keep the session of a run."""


class Replayer(Protocol):
    """A model runtime or a phone's trainer, as far as replay needs it."""

    @property
    def layout(self) -> Layout:
        """The layout of the adapter."""

    @property
    def backend(self) -> Backend:
        """The replay backend."""

    def check_layout(self, layout_hash: bytes) -> None:
        """Raise an error if an instruction's layout is not the adapter's."""


def catch_up_session(
    sessions: SessionStore,
    replayer: Replayer,
    instruction: Instruction,
    catch_up: CatchUp,
    reach: Reach = Session.catch_up,
) -> Session:
    """Return the session at the state that an instruction starts from.

    Args:
        sessions: the client's sessions, which are read and not written.
        replayer: layout and replay backend.
        instruction: instruction with the server's round and digest.
        catch_up: missed rounds from the server; empty if the session must have all of them.
        reach: brings the session to the server's round.

    Raises:
        CatchUpError: if the session does not reach the server's round and digest.
    """
    replayer.check_layout(instruction.layout_hash)
    layout, run_id = replayer.layout, instruction.run_id
    track = GLOBAL_TRACK if instruction.track == INTERCEPT_TRACK else instruction.track
    header = LedgerHeader(track, run_id, instruction.layout_hash)
    session = sessions.read_session(run_id) or Session.begin(header, layout)
    if isinstance(instruction, TrainInstruction):
        goal = instruction.round - 1, instruction.start_digest
    else:
        goal = instruction.round, instruction.digest
    return reach(session, catch_up, header, layout, *goal, replayer.backend)


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


class ClientHandler(ABC):
    """A client that replies to every frame with a frame; to one that it cannot obey, a refusal.

    Args:
        client: client index.
        sessions: store of the client's sessions.
        guard: guard of the answers, with the owner's limits.
        answer_log: log of the answers, on disk; None logs nothing.
        trained: number of trained numbers, d.
        signed_runs: runs of the scenarios that the operator has signed; None obeys the server.
    """

    def __init__(
        self,
        client: int,
        sessions: SessionStore,
        guard: AnswerGuard,
        answer_log: AnswerLog | None,
        trained: int,
        signed_runs: SignedRuns | None = None,
    ) -> None:
        self._client, self._sessions, self._guard = client, sessions, guard
        self._answer_log, self._trained, self._signed_runs = answer_log, trained, signed_runs

    def refuse(self, instruction: bytes, error: SamaraError, personal: bool = False) -> bytes:
        """Log an error, and return a refusal with its code and the last round in the session.

        With differential privacy it is a constant one if it is about examples.

        Args:
            instruction: the refused frame; empty for a hello.
            error: the reason.
            personal: whether the instruction is to compare personal models.
        """
        if self._is_private:
            error = without_examples(error)
        last_round = self._session_round(instruction)
        refusal = make_refusal(instruction, self._client, last_round, error)
        if self._answer_log and instruction:
            try:
                self._answer_log.add_refusal(instruction, refusal, personal, error)
            except SamaraError as problem:  # a refusal holds nothing of the examples
                log.warning("%s", problem)
        return refusal

    @property
    @abstractmethod
    def _is_private(self) -> bool:
        """Return whether the run that is answered has differential privacy."""

    def _reply_or_refuse(
        self, instruction: bytes, reply: Callable[[], bytes], personal: bool = False
    ) -> bytes:
        """Return the reply, or the refusal that tells the server of the error in making it.

        The reply to an instruction is in the log of answers before it leaves.

        Args:
            instruction: frame that is replied to; empty for a hello.
            reply: function that makes the reply.
            personal: whether the instruction is to compare personal models.
        """
        try:
            if instruction and self._signed_runs:
                self._signed_runs.check(instruction, personal)
            answer = reply()
            if self._answer_log and instruction and answer:
                self._answer_log.add(instruction, answer, personal, self._trained)
            return answer
        except SamaraError as error:
            return self.refuse(instruction, error, personal)

    def _report_once(
        self,
        frame: bytes,
        start_session: Callable[[TrainInstruction], Session],
        train: Callable[[TrainInstruction, Session], Report | AnyVectorReport | MaskedReport],
    ) -> bytes:
        """Return the report on a train instruction; a repeated instruction gets the stored report.

        Args:
            frame: train instruction.
            start_session: function that gives the session at the instruction's start.
            train: function that takes the local steps from a session.
        """
        instruction, token = TrainInstruction.decode(frame), token_of(frame)
        session = self._sessions.read_session(instruction.run_id)
        if session is None or session.token != token:
            if stored := self._guard.find_report(token):
                return stored
            session = start_session(instruction)
            if self._signed_runs:
                self._signed_runs.check_first(instruction, token)
            self._guard.check_report(instruction, token)
            session = session.with_report(token, train(instruction, session).encode())
            self._guard.add_report(instruction, token, session.report)
            self._sessions.write_session(instruction.run_id, session)
        return session.report

    def _evaluate_once(
        self,
        frame: bytes,
        personal: bool,
        evaluate: Callable[[EvaluateInstruction], tuple[EvaluationColumn, ...]],
    ) -> bytes:
        """Return the evaluation that an instruction asks for; a repeated one gets the stored one.

        Args:
            frame: evaluate instruction.
            personal: whether the personal comparison is asked for.
            evaluate: function that evaluates the state that the instruction names.
        """
        instruction, token = EvaluateInstruction.decode(frame), token_of(frame)
        if stored := self._guard.find_evaluation(instruction, token, personal):
            return stored
        evaluation = Evaluation(token, self._client, evaluate(instruction))
        return self._guard.add_evaluation(instruction, evaluation, personal)

    def _session_round(self, frame: bytes) -> int:
        """Return the last round in this client's state; the server sends the rounds after it."""
        try:
            session = self._sessions.read_session(decode_instruction(frame).run_id)
        except SamaraError:
            return 0
        return session.position.round if session else 0


def decode_instruction(frame: bytes) -> Instruction:
    """Read a train or an evaluate instruction.

    Raises:
        FrameError: if the frame is neither.
    """
    if kind_of(frame) is Kind.TRAIN:
        return TrainInstruction.decode(frame)
    return EvaluateInstruction.decode(frame)
