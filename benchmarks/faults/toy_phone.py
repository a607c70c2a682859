"""A phone without a model, for scripts about gateways: the toy client's answers, as frames."""

from benchmarks.faults.toy_client import answer, hello_of
from samara.client.protocol.session import Session
from samara.shared.errors import FrameError
from samara.shared.frames.instructions import EvaluateInstruction, TrainInstruction, token_of
from samara.shared.frames.refusal import Refusal
from samara.shared.ledger.records import CatchUp


class ToyPhone:
    """A phone as `samara.devices.live.gateway_stream.attach` wants one.

    Args:
        client: client index.
        clients: number of clients that its hello names.

    Attributes:
        session: the last state of the run that it has; None before the first instruction.
        answered: number of instructions that it has answered.
    """

    def __init__(self, client: int, clients: int) -> None:
        self.session: Session | None = None
        self.answered = 0
        self._client, self._clients = client, clients

    def hello(self, settings: bytes = b"") -> bytes:
        """Return its hello."""
        return hello_of(self._client, self.session, self._clients)

    def train(
        self, instruction: bytes, catch_up: CatchUp, settings: bytes = b"", shares: bytes = b""
    ) -> bytes:
        """Return its report, or a refusal."""
        return self._answer(TrainInstruction, instruction, catch_up)

    def evaluate(
        self,
        instruction: bytes,
        catch_up: CatchUp,
        settings: bytes = b"",
        personal: bool = False,
    ) -> bytes:
        """Return its evaluation of the global model, whatever is asked, or a refusal."""
        return self._answer(EvaluateInstruction, instruction, catch_up)

    def receive_blob(self, part: bytes, *_: bytes) -> bytes:
        """Refuse a part of a file."""
        error = FrameError("a toy phone lacks no blob")
        return Refusal.of_error(token_of(part), self._client, 0, error).encode()

    def hear_refusal(self, refusal: bytes) -> bytes:
        """Return a notice that the server refuses it, and stay."""
        return refusal

    def _answer(
        self,
        kind: type[TrainInstruction] | type[EvaluateInstruction],
        instruction: bytes,
        catch_up: CatchUp,
    ) -> bytes:
        self.answered += 1
        said, self.session = answer(kind, instruction, catch_up, self._client, self.session)
        return said
