"""A client of a run: what it answers, by a trainer and a memory of where it stands."""

from client.personal.methods import composition
from client.personal.private_rounds import compared
from client.protocol.client_handler import Answering, Instruction, Memory, decoded, standing
from client.protocol.session import Session
from client.training.trainer import Trainer, figures
from shared.config import RunConfig
from shared.frames.evaluation import Evaluation
from shared.frames.instructions import EvaluateInstruction, TrainInstruction, token_of
from shared.frames.report import Report
from shared.ledger.catch_up import CatchUp
from shared.runs import run_id_of


class ProtocolClient(Answering):
    """A client of a run. Every answer is a frame; a refusal frame where something is wrong.

    Args:
        trainer: the model and the examples.
        config: of the run, with this client's own settings in it.
        asked: of the run, as the server has it.
        client: index of this client.
        clients: how many clients share the examples; 0 if all are this client's own.
        memory: where its sessions are.
    """

    def __init__(
        self,
        trainer: Trainer,
        config: RunConfig,
        asked: RunConfig,
        client: int,
        clients: int,
        memory: Memory,
    ) -> None:
        super().__init__(client, memory)
        self._trainer, self._config, self._asked = trainer, config, asked
        self._clients = clients

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
        instruction = decoded(frame)
        known = self._memory.session(instruction.run_id)
        if known and known.token == token_of(frame):
            return b""
        self._memory.remember(instruction.run_id, self._standing(instruction, catch_up))
        return b""

    def _trained(self, frame: bytes) -> bytes:
        parts = composition(self._config, self._trainer.layout)

        def trained(instruction: TrainInstruction, session: Session) -> Report:
            model, place = parts.model(session.state), (self._device, self._clients)
            return self._trainer.train(instruction, model, *place, parts.shared)

        return self._reported(frame, trained, lambda asked: self._standing(asked, CatchUp()))

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

    def _standing(self, instruction: Instruction, catch_up: CatchUp) -> Session:
        """The session at the instruction's start; without a catch-up it must be there already."""
        return standing(self._memory, self._trainer, instruction, catch_up)
