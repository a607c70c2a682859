"""The phone as a client of a run: replies to frames with a program and the phone's examples."""

from client.protocol.client_handler import ClientHandler, Instruction, catch_up_session
from client.protocol.scalar_counts import ScalarBudget, ScalarCounts
from client.protocol.session import Session
from client.protocol.session_store import SessionFolder
from devices.phone.reference_client.phone_trainer import PhoneTrainer
from shared.errors import FrameError
from shared.frames.evaluation import Evaluation
from shared.frames.instructions import EvaluateInstruction, TrainInstruction, token_of
from shared.frames.report import Report
from shared.ledger.catch_up import CatchUp


class Phone(ClientHandler):
    """A phone's replies to the gateway.

    Args:
        trainer: program and examples.
        client: client index, derived from the phone's key.
        sessions: the phone's sessions, on disk.
        counts: counts of sent scalars, on disk.
        scalar_limit: largest scalar ratio that the phone's owner allows; 0 is no limit.
    """

    def __init__(
        self,
        trainer: PhoneTrainer,
        client: int,
        sessions: SessionFolder,
        counts: ScalarCounts,
        scalar_limit: float = 0.0,
    ) -> None:
        size = trainer.layout.size
        budget = ScalarBudget(counts, trainer.training_hash, size, scalar_limit)
        super().__init__(client, sessions, budget)
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
        instruction = EvaluateInstruction.decode(frame)
        state = self._session_at(instruction, catch_up).state
        column = self._trainer.figures("global", state, instruction.split)
        return Evaluation(token_of(frame), self._client, (column,)).encode()

    def _session_at(self, instruction: Instruction, catch_up: CatchUp) -> Session:
        """Return the session at an instruction's start, after keeping it on disk."""
        session = catch_up_session(self._sessions, self._trainer, instruction, catch_up)
        self._sessions.write_session(instruction.run_id, session)
        return session
