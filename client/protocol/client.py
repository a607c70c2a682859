"""A client in a run, which answers every task with a frame.

A learner does the computation: a model runtime, or a phone's program. A client refuses tasks that
it cannot carry out, or that its owner's limits or signed scenarios do not allow.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from samara.client.limits.answer_limits import check_split
from samara.client.personal.columns import evaluate_global_model, evaluate_personal_model
from samara.client.personal.components import train_for_a_round
from samara.client.personal.learner import Learner
from samara.client.personal.methods import composition
from samara.client.personal.personalizer import Personalizer
from samara.client.personal.private_fit import intercept_for_training, report_intercept
from samara.client.protocol.masking_client import Masking
from samara.client.protocol.private_report import make_private, refuse_evaluation, without_examples
from samara.client.protocol.session import (
    Instruction,
    Reach,
    Session,
    SessionStore,
    decode_instruction,
    session_at,
)
from samara.client.protocol.stepwise_catch_up import reach_in_steps
from samara.shared.errors import (
    DataError,
    FrameError,
    MaskingError,
    SamaraError,
    find_disk_error,
)
from samara.shared.proto.trainer_pb2 import Task, TaskKind
from samara.shared.protocol.frames.evaluation import Evaluation, EvaluationColumn
from samara.shared.protocol.frames.instructions import (
    INTERCEPT_TRACK,
    EvaluateInstruction,
    Split,
    TrainInstruction,
    token_of,
)
from samara.shared.protocol.frames.refusal import Refusal, describe_servers_refusal
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.frames.vector_report import AnyVectorReport, MaskedReport
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.terms.run_terms import RunTerms

log = logging.getLogger("samara.client")

INSTRUCTIONS = (TaskKind.TRAIN, TaskKind.EVALUATE)
"""Kinds of tasks that are instructions of a run."""
Pausing = Callable[[float], AbstractContextManager[Callable[[], bool]]]
"""Function that takes the seconds that the server waits, and returns the context in which an answer
is computed.

The context provides a function that returns whether the server has stopped waiting.
"""


def unpaused(seconds: float) -> AbstractContextManager[Callable[[], bool]]:
    """Return a context in which nothing pauses the computation."""
    return nullcontext(lambda: False)


class Guard:
    """The guard of a client without limits, which allows every answer and stores none.

    `AnswerGuard` is the guard of a client with an owner.
    """

    def check(self, task: Task) -> None:
        """Check that an instruction may be carried out."""

    def add_answer(self, task: Task, answer: bytes) -> None:
        """Log the answer to an instruction durably."""

    def add_refusal(self, task: Task, refusal: bytes, error: SamaraError) -> None:
        """Log the refusal of a task."""

    def add_passes(self, run_id: bytes) -> None:
        """Add the rows run through the model since the last call to a run's count."""

    def add_introduction(self, run_id: bytes, counts: Mapping[Split, int]) -> None:
        """Store the number of examples of each split that a hello declares."""

    def introduced(self, run_id: bytes) -> Mapping[Split, int]:
        """Return the number of examples by split that the client declared in its last hello.

        The result is empty if nothing was stored.
        """
        return {}

    def find_report(self, token: bytes) -> bytes:
        """Return the stored noised report for this instruction, or b"" without one."""
        return b""

    def check_report(self, instruction: TrainInstruction, token: bytes) -> None:
        """Check that the report for an instruction stays within the limits."""

    def add_report(self, instruction: TrainInstruction, token: bytes, report: bytes) -> None:
        """Count the report for an instruction durably; a repeated report does not count again."""

    def find_evaluation(
        self, instruction: EvaluateInstruction, token: bytes, personal: bool
    ) -> bytes:
        """Return the stored evaluation that answered this instruction, or b"" without one.

        Raises:
            EvaluationLimitError: if the evaluation is on training examples.
        """
        check_split(instruction)
        return b""

    def check_evaluated(self, instruction: EvaluateInstruction, is_fitted: bool) -> None:
        """Check that an evaluation covers enough examples.

        Args:
            instruction: evaluate instruction.
            is_fitted: whether the evaluated model is fitted to the training examples.
        """

    def add_restore(self, run_id: bytes) -> None:
        """Count durably that the server was restored from a backup."""

    def add_evaluation(
        self, instruction: EvaluateInstruction, evaluation: Evaluation, personal: bool
    ) -> bytes:
        """Store an evaluation, count its losses once, and return it as a frame."""
        return evaluation.encode()


@dataclass(frozen=True)
class Participation:
    """Facts about one client's participation in a run.

    Attributes:
        terms: terms of the run, with the owner's settings applied.
        run_id: run id, 8 bytes.
        folder: folder of the run on this machine; for a live client, one of its run folders.
        snapshot_every: number of records between snapshots of the personal ledger; 0 for no
            snapshots.
        is_live: whether private rounds are taken between messages. In a simulation they are taken
            as soon as they are due.
        masking: the client's part in secure aggregation; None if reports are not masked.
        is_measured: whether the client is evaluated despite differential privacy, as simulated
            clients may be.
    """

    terms: RunTerms
    run_id: bytes
    folder: Path
    snapshot_every: int
    is_live: bool = False
    masking: Masking | None = None
    is_measured: bool = False

    @property
    def hides_examples(self) -> bool:
        """True if the client sends facts about its examples only in noised sums."""
        return self.terms.privacy is not None and not self.is_measured

    @property
    def takes_private_rounds_between(self) -> bool:
        """True if private rounds are taken before the server requests the personal model."""
        return self.is_live or self.terms.when != "end"

    def own_folder(self, client: int) -> Path:
        """Return the folder with a client's files in the run."""
        return self.folder / "clients" / str(client)


class Client:
    """A client that answers the tasks of a server.

    Args:
        learner: model and examples of the client.
        sessions: store of the client's sessions.
        guard: guard of the answers, with the owner's limits.
        part: the client's participation in the run; None refuses every instruction.
        reach: function that brings a session to the server's round.
    """

    def __init__(
        self,
        learner: Learner,
        sessions: SessionStore,
        guard: Guard,
        part: Participation | None,
        reach: Reach = Session.catch_up,
    ) -> None:
        self._learner, self._sessions, self._guard = learner, sessions, guard
        self._part, self._reach = part, reach

    def answer(self, task: Task, pausing: Pausing = unpaused) -> bytes:
        """Log and return the reply to a task, as a frame.

        The session first catches up to the start state of the instruction. It stays there if a
        later step fails. A repeated train instruction gets the stored report.

        Args:
            task: task of a server.
            pausing: function that returns the context in which the reply is computed.
        """
        try:
            return self._reply(task, pausing)
        except SamaraError as error:
            return self.refuse(task, error)
        except OSError as error:
            if disk_error := find_disk_error(error):
                return self.refuse(task, disk_error)
            raise

    def refuse(self, task: Task, error: SamaraError) -> bytes:
        """Log an error, and return a refusal with its code and the last round in the session.

        If the disk is full, the refusal always names this reason. Under differential privacy, all
        refusals for reasons that concern the examples are equal.
        """
        frame, error = refused_frame(task), find_disk_error(error) or error
        if self._part and self._part.terms.privacy:
            error = without_examples(error)
        refusal = make_refusal(frame, self._learner.client, self._last_round(frame), error)
        if frame:
            self._guard.add_refusal(task, refusal, error)
        return refusal

    def take_private_rounds(self) -> bool:
        """Take the due private rounds from the next start state, and return whether any were due.

        Nothing is sent. An interruption leaves a ledger of complete rounds, and the next call
        continues from that ledger.

        Raises:
            TrainingError, ReplayError, LedgerError: as in `Personalizer.take_next`.
        """
        part = self._taken_part
        if (session := self._sessions.read_session(part.run_id)) is None:
            return False
        personalizer = self._personalizer(part, part.run_id, session)
        personalizer.note(session.position.round, session.state, session.digest)
        try:
            return personalizer.take_next()
        finally:
            self._guard.add_passes(part.run_id)

    @property
    def _taken_part(self) -> Participation:
        """The client's participation in the run.

        Raises:
            FrameError: if the client takes part in no run.
        """
        if self._part is None:
            raise FrameError("this client does not know the settings of the run")
        return self._part

    def _reply(self, task: Task, pausing: Pausing) -> bytes:
        match task.kind:
            case TaskKind.HELLO:
                return self._hello()
            case TaskKind.MASK:
                return self._mask(task.instruction)
            case TaskKind.REFUSED:
                return hear_refusal(task.instruction)
            case TaskKind.BLOB:
                raise FrameError("the server sent a part of a file, but this client needs no file")
        self._guard.check(task)
        part = self._taken_part
        instruction = decode_instruction(task.instruction)
        part.terms.check_run(part.run_id, instruction.run_id, instruction.track)
        match task.kind, instruction:
            case TaskKind.TRAIN, TrainInstruction():
                reply = self._train(instruction, task, part, pausing)
            case TaskKind.EVALUATE, EvaluateInstruction():
                reply = self._evaluate(instruction, task, part, pausing)
            case _:
                raise FrameError(
                    f"the frame of the {TaskKind.Name(task.kind).lower()} task is an instruction "
                    "of another kind; use the same version of Samara on server and client"
                )
        self._guard.add_answer(task, reply)
        return reply

    def _hello(self) -> bytes:
        part, learner = self._taken_part, self._learner
        session = self._sessions.read_session(part.run_id)
        self._guard.add_introduction(part.run_id, learner.example_counts())
        last_round = session.position.round if session else 0
        return learner.introduce(last_round, part.hides_examples).encode()

    def _mask(self, frame: bytes) -> bytes:
        """Return the answer to a masking frame; sealed shares get an empty answer."""
        if self._part is None or self._part.masking is None:
            raise MaskingError(
                "the server asks for masks, but this client masks no reports in this run"
            )
        return self._part.masking.answer(frame)

    def _train(
        self, instruction: TrainInstruction, task: Task, part: Participation, pausing: Pausing
    ) -> bytes:
        token = token_of(task.instruction)
        if task.shares:
            self._mask(task.shares)
        session = self._sessions.read_session(instruction.run_id)
        if session is None or session.token != token:
            session = self._catch_up(session, instruction, task, part, pausing)
            if stored := self._guard.find_report(token):
                return stored
            self._guard.check_report(instruction, token)
            with pausing(instruction.deadline or part.terms.deadline):
                report = self._report(instruction, session, part).encode()
            session = session.with_report(token, report)
            self._guard.add_report(instruction, token, report)
            self._sessions.write_session(instruction.run_id, session)
        return session.report

    def _report(
        self, instruction: TrainInstruction, session: Session, part: Participation
    ) -> Report | AnyVectorReport | MaskedReport:
        """Take the local steps from a session's state, and return their report."""
        learner, terms, masking = self._learner, part.terms, part.masking
        if terms.privacy and terms.privacy.is_masked and masking is None:
            raise MaskingError(
                "this client masks no reports, but the run requires masked reports; start the "
                "client with `samara client up`"
            )
        if instruction.track == INTERCEPT_TRACK:
            report = report_intercept(learner, terms, instruction, session.state)
        else:
            parts = composition(terms, learner.layout)
            private = None
            if terms.method == "readout":
                private = intercept_for_training(learner, session.state)
            model = parts.model(session.state, private)
            report = train_for_a_round(learner, instruction, model, parts.shared)
        self._guard.add_passes(instruction.run_id)
        if terms.privacy is None:
            return report
        hidden = make_private(report, instruction, terms.privacy)
        return masking.mask(hidden) if masking else hidden

    def _evaluate(
        self, instruction: EvaluateInstruction, task: Task, part: Participation, pausing: Pausing
    ) -> bytes:
        token = token_of(task.instruction)
        session = self._sessions.read_session(instruction.run_id)
        session = self._catch_up(session, instruction, task, part, pausing)
        if stored := self._guard.find_evaluation(instruction, token, task.personal):
            return stored
        if part.hides_examples:
            refuse_evaluation(instruction)
        with pausing(part.terms.deadline):
            columns = self._columns(instruction, session, part, task.personal)
        columns = [_as_sent(column, part.is_live) for column in columns]
        evaluation = Evaluation(token, self._learner.client, tuple(columns))
        return self._guard.add_evaluation(instruction, evaluation, task.personal)

    def _columns(
        self,
        instruction: EvaluateInstruction,
        session: Session,
        part: Participation,
        personal: bool,
    ) -> Sequence[EvaluationColumn]:
        """Return the columns of the global model, or of the personal model and its baselines."""
        learner, terms, run_id = self._learner, part.terms, instruction.run_id
        needs_examples = personal or terms.method == "readout"
        if needs_examples and not learner.example_counts()[Split.TRAIN]:
            raise DataError(
                "this client has no training example; add examples with samara client learn"
            )
        self._guard.check_evaluated(instruction, needs_examples)
        learner.limit_evaluation(self._guard.introduced(run_id))
        state, split, prior = session.state, instruction.split, session.common_prior(terms)
        if personal:
            personalizer = self._personalizer(part, run_id, session)
            if part.takes_private_rounds_between:
                number = session.position.round
                private = personalizer.private_state(number, state, session.digest)
            else:
                private = personalizer.recorded_private_state(state)
            own = personalizer.own_words(state, private)
            columns = evaluate_personal_model(learner, terms, state, private, split, prior, own)
        else:
            columns = evaluate_global_model(learner, terms, state, split, prior)
        self._guard.add_passes(run_id)
        return columns

    def _catch_up(
        self,
        session: Session | None,
        instruction: Instruction,
        task: Task,
        part: Participation,
        pausing: Pausing,
    ) -> Session:
        """Bring the session to an instruction's start state, store it and return it.

        A live client catches up within the owner's limits, and keeps each replayed round. If
        private rounds from the state are due, the state is recorded. A simulated client takes these
        rounds immediately. If they fail, the instruction is still carried out.
        """
        missed = CatchUp(task.snapshot, task.tail)
        before = session
        if part.is_live and len(missed):
            session = self._catch_up_in_steps(session, instruction, missed, part, pausing)
        else:
            session = session_at(session, self._learner, instruction, missed, self._reach)
        if before is None or session.position != before.position:
            self._keep(instruction.run_id, session)
        if part.takes_private_rounds_between:
            try:
                personalizer = self._personalizer(part, instruction.run_id, session)
                noted = personalizer.note(session.position.round, session.state, session.digest)
                if noted and not part.is_live:
                    personalizer.take()
            except SamaraError as error:
                log.warning("client %d: the private rounds failed: %s", self._learner.client, error)
        return session

    def _catch_up_in_steps(
        self,
        session: Session | None,
        instruction: Instruction,
        missed: CatchUp,
        part: Participation,
        pausing: Pausing,
    ) -> Session:
        """Bring the session to an instruction's start state, storing it after each step.

        Raises:
            PausedError: if the owner's limits forbid work until the server no longer waits.
            CatchUpError: if the session does not reach the instruction's start in time.
        """
        terms = part.terms
        seconds = terms.deadline
        if isinstance(instruction, TrainInstruction):
            seconds = instruction.deadline or seconds
        keep = partial(self._keep, instruction.run_id)
        with pausing(seconds) as is_late:
            reach = reach_in_steps(keep, is_late, bool(terms.intercept_round))
            return session_at(session, self._learner, instruction, missed, reach)

    def _keep(self, run_id: bytes, session: Session) -> None:
        """Store a session, and count a restore if the session went back to a server's backup."""
        if session.went_back:
            self._guard.add_restore(run_id)
        self._sessions.write_session(run_id, session)

    def _personalizer(self, part: Participation, run_id: bytes, session: Session) -> Personalizer:
        return Personalizer(
            self._learner,
            part.terms,
            run_id,
            part.own_folder(self._learner.client),
            part.snapshot_every,
            part.folder.parent if part.is_live else None,
            session.common_prior(part.terms),
        )

    def _last_round(self, frame: bytes) -> int:
        """Return the last round in the client's state; the server then sends later rounds."""
        try:
            session = self._sessions.read_session(decode_instruction(frame).run_id)
        except SamaraError:
            return 0
        return session.position.round if session else 0


def _as_sent(column: EvaluationColumn, is_live: bool) -> EvaluationColumn:
    """Return an evaluation column in the form that a client sends.

    The loss is rounded to float32, because more bits would only reveal examples. Servers of earlier
    versions refuse a frame with ordered pairs, so a live client sends none.
    """
    with np.errstate(over="ignore"):  # the frame refuses an infinite loss
        rounded = replace(column, mean_loss=float(np.float32(column.mean_loss)))
    return replace(rounded, ordered=None) if is_live else rounded


def hear_refusal(frame: bytes) -> bytes:
    """Log the server's reason for refusing this client, and return the same frame as the reply.

    Raises:
        FrameError: if the frame is not a refusal.
    """
    log.warning("%s", describe_servers_refusal(Refusal.decode(frame).code))
    return frame


def refused_frame(task: Task) -> bytes:
    """Return the frame to which a task's refusal refers; empty for a hello and masking frames."""
    return b"" if task.kind in (TaskKind.HELLO, TaskKind.MASK) else task.instruction


def make_refusal(frame: bytes, client: int, last_round: int, error: SamaraError) -> bytes:
    """Log an error, and return a refusal with its code and numbers.

    The error's text is only logged on the client. It may contain paths or quote a row of the
    client's data.

    Args:
        frame: the refused frame; empty for a hello.
        client: client index.
        last_round: the last round in the client's state.
        error: the reason.
    """
    log.warning("client %d refuses: %s", client, error)
    return Refusal.of_error(token_of(frame), client, last_round, error).encode()
