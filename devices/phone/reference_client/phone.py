"""The phone as a client of a run: replies to frames with a program and the phone's examples."""

from pathlib import Path

from client.protocol.answer_guard import AnswerGuard
from client.protocol.answer_limits import AnswerLimits
from client.protocol.answer_log import AnswerLog
from client.protocol.answered_runs import AnsweredRuns
from client.protocol.client_handler import ClientHandler, Instruction, catch_up_session
from client.protocol.scalar_counts import ScalarBudget, ScalarCounts
from client.protocol.scenario_folder import ScenarioFolder
from client.protocol.session import Session
from client.protocol.session_store import SessionFolder
from client.protocol.signed_runs import SignedRuns
from devices.phone.reference_client.phone_trainer import PhoneTrainer
from shared.errors import FrameError
from shared.frames.evaluation import EvaluationColumn
from shared.frames.instructions import EvaluateInstruction, TrainInstruction
from shared.frames.report import Report
from shared.ledger.catch_up import CatchUp


class Phone(ClientHandler):
    """A phone's replies to the gateway.

    Args:
        trainer: program and examples.
        client: client index, derived from the phone's key.
        home: folder of the phone's sessions, counts, answers and signed scenarios; made if it does
            not exist.
        limits: limits that the phone's owner set.

    Raises:
        ScenarioError: if the signed scenarios are damaged.
    """

    def __init__(
        self, trainer: PhoneTrainer, client: int, home: Path, limits: AnswerLimits | None = None
    ) -> None:
        sessions, limits = SessionFolder(home), limits or AnswerLimits()
        size, limit = trainer.layout.size, limits.scalar_limit
        budget = ScalarBudget(ScalarCounts(home), trainer.generations_of, size, limit)
        answered = AnsweredRuns(sessions.folder_of)
        guard = AnswerGuard(limits, trainer.smallest_batch, budget, answered)
        signed_runs = _signed_runs(ScenarioFolder(home), trainer, answered)
        super().__init__(client, sessions, guard, AnswerLog(home), size, signed_runs)
        self._trainer = trainer

    def hello(self) -> bytes:
        """Return the hello with which this phone introduces itself; its round is always 0.

        The server learns the session's round from a refusal of its first instruction.
        """
        return self._trainer.hello(self._client, 0).encode()

    def train(self, instruction: bytes, catch_up: CatchUp) -> bytes:
        """Catch up, train, and report; a repeated instruction gets the stored report."""
        return self._reply_or_refuse(instruction, lambda: self._train(instruction, catch_up))

    def evaluate(self, instruction: bytes, catch_up: CatchUp) -> bytes:
        """Catch up, and evaluate the global model on the instruction's split."""
        return self._reply_or_refuse(instruction, lambda: self._evaluate(instruction, catch_up))

    def receive_blob(self, part: bytes) -> bytes:
        """Refuse a part of a file: all that the adapter needs is in the phone's program."""
        return self.refuse(part, FrameError("a blob part was sent to a phone that lacks no blob"))

    def _train(self, frame: bytes, catch_up: CatchUp) -> bytes:
        def start_session(instruction: TrainInstruction) -> Session:
            return self._session_at(instruction, catch_up)

        def train(instruction: TrainInstruction, session: Session) -> Report:
            return self._trainer.train(instruction, session.state, self._client)

        return self._report_once(frame, start_session, train)

    def _evaluate(self, frame: bytes, catch_up: CatchUp) -> bytes:
        def evaluate(instruction: EvaluateInstruction) -> tuple[EvaluationColumn, ...]:
            state = self._session_at(instruction, catch_up).state
            return (self._trainer.figures("global", state, instruction.split),)

        return self._evaluate_once(frame, False, evaluate)

    def _session_at(self, instruction: Instruction, catch_up: CatchUp) -> Session:
        """Return the session at an instruction's start, after keeping it on disk."""
        session = catch_up_session(self._sessions, self._trainer, instruction, catch_up)
        self._sessions.write_session(instruction.run_id, session)
        return session


def _signed_runs(
    folder: ScenarioFolder, trainer: PhoneTrainer, answered: AnsweredRuns
) -> SignedRuns | None:
    """Return the runs of a phone's signed scenarios; None if it has none, and obeys the server."""
    scenarios = folder.read_all()
    if scenarios is None:
        return None
    hashes = trainer.layout.hash, trainer.model_id
    return SignedRuns(scenarios, *hashes, answered, folder.record_refusal)
