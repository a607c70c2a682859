"""The clients of a fleet: they share weights, a state, and passes over the weights.

All clients of a round start from one global state, so there is one session for the whole fleet; it
follows the ledger by the tails that the server sends. What else a client is, its examples, seeds
and device index, is looked up when it is needed. Only clients whose report is due have adapters.
"""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from itertools import groupby

from flwr.app import Message

from client.app import unpacked
from client.personal.methods import composition
from client.protocol.client_handler import make_refusal, standing
from client.protocol.protocol_client import ProtocolClient
from client.protocol.session import Session
from client.training.local_steps import clients_within
from client.training.trainer import Examples, Trainer, figures
from shared.config import RunConfig
from shared.errors import SamaraError
from shared.frames.evaluation import Evaluation
from shared.frames.instructions import EvaluateInstruction, TrainInstruction, token_of
from shared.ledger.catch_up import CatchUp
from simulations.fleet.device import Device

_EVALUATED_TOGETHER = 16
"""Clients whose examples are sorted by length together when they evaluate."""


class Clients:
    """Answers for every client of a fleet.

    Args:
        devices: of the fleet.
        trainers: by the quantization of a device.
        config: of the run.
        pool: of threads, each of which gets a twin of each trainer.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        trainers: Mapping[str, Trainer],
        config: RunConfig,
        pool: Executor,
    ) -> None:
        self._devices, self._first, self._config = devices, trainers, config
        self._pool, self._of_thread = pool, threading.local()
        self._session: Session | None = None
        self._caught_up = b""

    def session(self, run_id: bytes) -> Session | None:
        """The session that all clients share; a `client.protocol.protocol_client.Memory`."""
        return self._session

    def remember(self, run_id: bytes, session: Session) -> None:
        """Keep the session that all clients share."""
        self._session = session

    def hello(self, number: int) -> bytes:
        """How a client introduces itself."""
        return self._participant(number).hello()

    def catch_up(self, number: int, message: Message) -> tuple[bytes, int, bytes]:
        """Take a message in for a client; the first of an instruction brings all where it begins.

        Returns:
            The frame in it, the bytes that came with it, and a refusal or nothing.
        """
        try:
            frame, catch_up = unpacked(message)
        except SamaraError as error:
            return b"", 0, make_refusal(b"", number, 0, error)
        refusal = b""
        if frame != self._caught_up:
            refusal = self._participant(number).catch_up(frame, catch_up)
            self._caught_up = b"" if refusal else frame
        return frame, len(catch_up), refusal

    def standing(self, instruction: TrainInstruction) -> Session:
        """The session where an instruction begins, which is kept with it until all reports are in.

        Raises:
            CatchUpError: if the clients are elsewhere.
        """
        return standing(self, self._trainer(0), instruction, CatchUp())

    def together(self, instruction: TrainInstruction, numbers: Sequence[int]) -> list[list[int]]:
        """Clients in the order given, cut into those that share passes: of one quantization, and
        no more than fit the budget of rows."""
        kinds: dict[str, list[int]] = {}
        for number in numbers:
            kinds.setdefault(self._kind(number), []).append(number)
        cut = []
        for alike in kinds.values():
            schedule = self._trainer(alike[0]).schedule
            size = clients_within(self._config.fleet.rows, instruction, schedule)
            cut += [alike[start : start + size] for start in range(0, len(alike), size)]
        place = {number: index for index, number in enumerate(numbers)}
        return sorted(cut, key=lambda some: place[some[0]])

    def reports(
        self, instruction: TrainInstruction, session: Session, groups: Sequence[Sequence[int]]
    ) -> dict[int, bytes]:
        """The reports, or refusals, of groups of clients; groups go side by side."""
        frame = instruction.encode()
        parts = composition(self._config, self._trainer(0).layout)
        model = parts.model(session.state)

        def trained(numbers: Sequence[int]) -> list[bytes]:
            trainer, clients = self._trainer(numbers[0]), len(self._devices)
            try:
                found = trainer.train_together(instruction, model, numbers, clients, parts.shared)
            except SamaraError as error:
                found = [error] * len(numbers)
            return [
                make_refusal(frame, number, session.position.round, answer)
                if isinstance(answer, SamaraError)
                else answer.encode()
                for number, answer in zip(numbers, found, strict=True)
            ]

        answers = self._pool.map(trained, groups)
        return {
            number: frame
            for numbers, frames in zip(groups, answers, strict=True)
            for number, frame in zip(numbers, frames, strict=True)
        }

    def evaluations(self, frame: bytes, numbers: Sequence[int], personal: bool) -> list[bytes]:
        """What clients answer that are asked to evaluate."""
        if personal:
            return list(
                self._pool.map(lambda n: self._participant(n).evaluate(frame, True), numbers)
            )
        kinds = [list(same) for _, same in groupby(numbers, self._kind)]
        groups = [
            same[start : start + _EVALUATED_TOGETHER]
            for same in kinds
            for start in range(0, len(same), _EVALUATED_TOGETHER)
        ]
        answers = self._pool.map(lambda group: self._evaluated(frame, group), groups)
        return [answer for some in answers for answer in some]

    def _evaluated(self, frame: bytes, numbers: Sequence[int]) -> list[bytes]:
        """All stand at one state, so their examples are examples of one adapter."""
        instruction, trainer = EvaluateInstruction.decode(frame), self._trainer(numbers[0])
        session, token = self._session, token_of(frame)
        assert session is not None, "a client catches up before it evaluates"
        state = composition(self._config, trainer.layout).model(session.state)
        own = [trainer.share(number, len(self._devices), instruction.split) for number in numbers]
        everything = Examples(tuple(p for data in own for p in data.prompts), own[0].labels)
        scores = trainer.scores(state, everything) if everything.prompts else None
        frames, begin = [], 0
        for number, data in zip(numbers, own, strict=True):
            end = begin + len(data.labels)
            mine = trainer.scores(state, data) if scores is None else scores[begin:end]
            columns = (figures("global", mine, data.labels),)
            frames.append(Evaluation(token, number, columns).encode())
            begin = end
        return frames

    def _participant(self, number: int) -> ProtocolClient:
        config = self._config
        return ProtocolClient(
            self._trainer(number), config, config, number, len(self._devices), self
        )

    def _kind(self, number: int) -> str:
        return self._devices[number].group.quantization

    def _trainer(self, number: int) -> Trainer:
        """The calling thread's trainer of a client's quantization."""
        twins: dict[int, Trainer] = self._of_thread.__dict__.setdefault("twins", {})
        first = self._first[self._kind(number)]
        if id(first) not in twins:
            twins[id(first)] = first.copy_sharing_weights()
        return twins[id(first)]
