"""A phone of a run: every question is a frame, every answer is one, whatever goes wrong."""

from client.protocol.client_handler import Answering, Instruction, standing
from client.protocol.session import Session
from client.protocol.session_store import SessionFolder
from devices.phone.reference_client.phone_trainer import PhoneTrainer
from shared.frames.evaluation import Evaluation
from shared.frames.instructions import EvaluateInstruction, TrainInstruction, token_of
from shared.frames.report import Report
from shared.ledger.catch_up import CatchUp


class Phone(Answering):
    """What answers a gateway.

    Args:
        trainer: program and examples.
        device: index, made of the phone's key.
        memory: its sessions, on disk.
    """

    def __init__(self, trainer: PhoneTrainer, device: int, memory: SessionFolder) -> None:
        super().__init__(device, memory)
        self._trainer = trainer

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
        def trained(instruction: TrainInstruction, session: Session) -> Report:
            return self._trainer.train(instruction, session.state, self._device)

        return self._reported(frame, trained, lambda asked: self._standing(asked, catch_up))

    def _evaluated(self, frame: bytes, catch_up: CatchUp) -> bytes:
        instruction = EvaluateInstruction.decode(frame)
        state = self._standing(instruction, catch_up).state
        column = self._trainer.figures("global", state, instruction.split)
        return Evaluation(token_of(frame), self._device, (column,)).encode()

    def _standing(self, instruction: Instruction, catch_up: CatchUp) -> Session:
        """The session at the instruction's start, on the disk before anything else is done."""
        session = standing(self._memory, self._trainer, instruction, catch_up)
        self._memory.remember(instruction.run_id, session)
        return session
