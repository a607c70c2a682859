"""A phone of a run: every question is a frame, every answer is one, whatever goes wrong."""

from collections.abc import Callable

from client.memory import FolderMemory
from client.session import Session
from devices.phone.reference_client.trainer import PhoneTrainer
from shared.errors import SamaraError
from shared.frames import EvaluateInstruction, Evaluation, Refusal, TrainInstruction, token_of
from shared.ledger.catch_up import CatchUp
from shared.ledger.records import LedgerHeader
from shared.wire import Kind, kind_of


class Phone:
    """What answers a gateway.

    Args:
        trainer: program and examples.
        device: index, made of the phone's key.
        memory: its sessions, on disk.
    """

    def __init__(self, trainer: PhoneTrainer, device: int, memory: FolderMemory) -> None:
        self._trainer, self._device, self._memory = trainer, device, memory

    def hello(self) -> bytes:
        """How this phone introduces itself; where it stands it says when it is asked."""
        return self._trainer.hello(self._device, 0).encode()

    def train(self, instruction: bytes, catch_up: CatchUp) -> bytes:
        """Catch up, train, and report; a repeated instruction gets the stored report."""
        return self._sound(instruction, lambda: self._trained(instruction, catch_up))

    def evaluate(self, instruction: bytes, catch_up: CatchUp) -> bytes:
        """Catch up, and evaluate the global model on the split that is asked for."""
        return self._sound(instruction, lambda: self._evaluated(instruction, catch_up))

    def _trained(self, frame: bytes, catch_up: CatchUp) -> bytes:
        instruction, token = TrainInstruction.decode(frame), token_of(frame)
        known = self._memory.session(instruction.run_id)
        if known and known.token == token:
            return known.report
        session = self._standing(instruction, catch_up)
        report = self._trainer.train(instruction, session.state, self._device)
        session = session.answered(token, report.encode())
        self._memory.remember(instruction.run_id, session)
        return session.report

    def _evaluated(self, frame: bytes, catch_up: CatchUp) -> bytes:
        instruction = EvaluateInstruction.decode(frame)
        state = self._standing(instruction, catch_up).state
        column = self._trainer.figures("global", state, instruction.split)
        return Evaluation(token_of(frame), self._device, (column,)).encode()

    def _standing(
        self, instruction: TrainInstruction | EvaluateInstruction, catch_up: CatchUp
    ) -> Session:
        """The session at the instruction's start, on the disk before anything else is done."""
        trainer, run_id = self._trainer, instruction.run_id
        trainer.check_layout(instruction.layout_hash)
        header = LedgerHeader(instruction.track, run_id, instruction.layout_hash)
        session = self._memory.session(run_id) or Session.begin(header, trainer.layout)
        if isinstance(instruction, TrainInstruction):
            goal = instruction.round - 1, instruction.start_digest
        else:
            goal = instruction.round, instruction.digest
        session = session.caught_up(catch_up, header, trainer.layout, *goal, trainer.backend)
        self._memory.remember(run_id, session)
        return session

    def _sound(self, instruction: bytes, answer: Callable[[], bytes]) -> bytes:
        try:
            return answer()
        except SamaraError as error:
            position = self._position(instruction)
            return Refusal(token_of(instruction), self._device, position, str(error)).encode()

    def _position(self, frame: bytes) -> int:
        """The last round in this phone's state, so that the server can send what is missing."""
        try:
            train = kind_of(frame) is Kind.TRAIN
            asked = TrainInstruction.decode(frame) if train else EvaluateInstruction.decode(frame)
            session = self._memory.session(asked.run_id)
        except SamaraError:
            return 0
        return session.position.round if session else 0
