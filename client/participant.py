"""A client of a run: what it answers, by a trainer and a memory of where it stands."""

from collections.abc import Callable
from typing import Protocol

from client.methods import composition
from client.personalize import compared
from client.session import Session
from client.trainer import Trainer, figures
from shared.config import RunConfig
from shared.errors import SamaraError
from shared.frames import EvaluateInstruction, Evaluation, Refusal, TrainInstruction, token_of
from shared.ledger.catch_up import CatchUp
from shared.ledger.records import LedgerHeader
from shared.runs import run_id_of
from shared.wire import Kind, kind_of


class Memory(Protocol):
    """Where a client keeps its sessions between messages."""

    def session(self, run_id: bytes) -> Session | None:
        """The session of a run; None if it has seen none of its rounds."""

    def remember(self, run_id: bytes, session: Session) -> None:
        """Keep the session of a run."""


class Participant:
    """A client of a run. Every answer is a frame; a refusal frame where something is wrong.

    Args:
        trainer: the model and the examples.
        config: of the run, with this device's own settings in it.
        asked: of the run, as the server has it.
        device: index of this client.
        clients: how many clients share the examples; 0 if all are this client's own.
        memory: where its sessions are.
    """

    def __init__(
        self,
        trainer: Trainer,
        config: RunConfig,
        asked: RunConfig,
        device: int,
        clients: int,
        memory: Memory,
    ) -> None:
        self._trainer, self._config, self._asked = trainer, config, asked
        self._device, self._clients, self._memory = device, clients, memory

    def hello(self) -> bytes:
        """How this client introduces itself."""

        def introduction() -> bytes:
            run_id = run_id_of(self._asked, self._trainer.layout, self._trainer.model_id)
            session = self._memory.session(run_id)
            position = session.position.round if session else 0
            return self._trainer.hello(self._device, self._clients, position).encode()

        return self._sound(b"", introduction)

    def catch_up(self, instruction: bytes, catch_up: CatchUp) -> bytes:
        """Stand where an instruction begins; the answer is empty unless it is a refusal.

        The session is remembered even if what follows fails.
        """
        return self._sound(instruction, lambda: self._caught_up(instruction, catch_up))

    def train(self, instruction: bytes) -> bytes:
        """Train, and report; a repeated instruction gets the stored report."""
        return self._sound(instruction, lambda: self._trained(instruction))

    def evaluate(self, instruction: bytes, personal: bool) -> bytes:
        """Evaluate the global model on the split that is asked for.

        Args:
            instruction: a frame.
            personal: take the private rounds too, and compare every way to serve this client on
                its own examples.
        """
        return self._sound(instruction, lambda: self._evaluated(instruction, personal))

    def _caught_up(self, frame: bytes, catch_up: CatchUp) -> bytes:
        instruction = _decoded(frame)
        known = self._memory.session(instruction.run_id)
        if known and known.token == token_of(frame):
            return b""
        self._memory.remember(instruction.run_id, self._standing(instruction, catch_up))
        return b""

    def _trained(self, frame: bytes) -> bytes:
        instruction, token = TrainInstruction.decode(frame), token_of(frame)
        known = self._memory.session(instruction.run_id)
        if known and known.token == token:
            return known.report
        session = self._standing(instruction, CatchUp())
        parts = composition(self._config, self._trainer.layout)
        model, place = parts.model(session.state), (self._device, self._clients)
        report = self._trainer.train(instruction, model, *place, parts.shared)
        answered = session.answered(token, report.encode())
        self._memory.remember(instruction.run_id, answered)
        return answered.report

    def _evaluated(self, frame: bytes, personal: bool) -> bytes:
        instruction, trainer = EvaluateInstruction.decode(frame), self._trainer
        state = self._standing(instruction, CatchUp()).state
        place = self._device, self._clients
        if personal:
            run, split = instruction.run_id, instruction.split
            columns = compared(trainer, self._config, run, state, *place, split)
        else:
            data = trainer.share(*place, instruction.split)
            model = composition(self._config, trainer.layout).model(state)
            columns = (figures("global", trainer.scores(model, data), data.labels),)
        return Evaluation(token_of(frame), self._device, columns).encode()

    def _standing(
        self, instruction: TrainInstruction | EvaluateInstruction, catch_up: CatchUp
    ) -> Session:
        """The session at the instruction's start; without a catch-up it must be there already."""
        trainer, run_id = self._trainer, instruction.run_id
        trainer.check_layout(instruction.layout_hash)
        header = LedgerHeader(instruction.track, run_id, instruction.layout_hash)
        session = self._memory.session(run_id) or Session.begin(header, trainer.layout)
        if isinstance(instruction, TrainInstruction):
            goal = instruction.round - 1, instruction.start_digest
        else:
            goal = instruction.round, instruction.digest
        return session.caught_up(catch_up, header, trainer.layout, *goal, trainer.backend)

    def refused(self, instruction: bytes, reason: str) -> bytes:
        """The frame that says why an instruction is not followed, and where this client stands."""
        position = self._position(instruction)
        return Refusal(token_of(instruction), self._device, position, reason).encode()

    def _sound(self, instruction: bytes, answer: Callable[[], bytes]) -> bytes:
        try:
            return answer()
        except SamaraError as error:
            return self.refused(instruction, str(error))

    def _position(self, instruction: bytes) -> int:
        """The last round in this client's state, so that the server can send what is missing."""
        try:
            session = self._memory.session(_decoded(instruction).run_id)
        except SamaraError:
            return 0
        return session.position.round if session else 0


def _decoded(frame: bytes) -> TrainInstruction | EvaluateInstruction:
    if kind_of(frame) is Kind.TRAIN:
        return TrainInstruction.decode(frame)
    return EvaluateInstruction.decode(frame)
