"""The clients of a fleet, which share weights, one session, and forward passes.

All clients of a round start from one global state. The whole fleet therefore needs only one
session, which the server's catch-ups keep up to date. A client's examples, seeds and index are
looked up when they are needed. Only clients whose report is due have adapters in memory.
"""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from itertools import groupby

from flwr.app import Message

from samara.client.app import task_of
from samara.client.personal.columns import global_column
from samara.client.personal.components import train_for_a_round
from samara.client.personal.learner import State
from samara.client.personal.methods import composition
from samara.client.personal.private_fit import report_intercept
from samara.client.personal.runtime_learner import RuntimeLearner
from samara.client.protocol.client import Client, make_refusal
from samara.client.protocol.session import Session, decode_instruction, session_at
from samara.client.protocol.simulated_client import RunFacts
from samara.client.training.client_data import ClientData, ClientDataSource
from samara.client.training.local_steps import clients_per_pass, take_local_steps_together
from samara.client.training.model_runtime import ModelRuntime
from samara.shared.errors import SamaraError
from samara.shared.proto.trainer_pb2 import Task, TaskKind
from samara.shared.protocol.frames.evaluation import Evaluation
from samara.shared.protocol.frames.instructions import (
    INTERCEPT_TRACK,
    EvaluateInstruction,
    TrainInstruction,
    token_of,
)
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.settings.config import RunConfig
from samara.shared.tasks.kinds import GenerationTask
from samara.simulations.fleet.device import Device

MOST_ROWS = 512
"""Maximum number of rows in a forward pass that several clients share."""
_EVALUATED_TOGETHER = 16
"""Number of clients whose examples an evaluation sorts by length together."""


class Clients:
    """All clients of a fleet, whose instructions are carried out by a pool of threads.

    Args:
        devices: devices of the fleet, one per client.
        runtimes: model runtimes by quantization of the devices.
        data: source of the clients' data.
        config: settings of the run.
        pool: thread pool; each thread uses a copy of each runtime that shares the weights.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        runtimes: Mapping[str, ModelRuntime],
        data: ClientDataSource,
        config: RunConfig,
        pool: Executor,
    ) -> None:
        self._devices = devices
        self._runtimes = runtimes
        self._data = data
        self._config = config
        self._pool = pool
        self._of_thread = threading.local()
        self._session: Session | None = None
        self._latest_frame = b""
        self._facts: dict[str, RunFacts] = {}  # by quantization, because model ids depend on it

    def read_session(self, run_id: bytes) -> Session | None:
        """Return the session shared by all clients (see `SessionStore`)."""
        return self._session

    def write_session(self, run_id: bytes, session: Session) -> None:
        """Store the session shared by all clients (see `SessionStore`)."""
        self._session = session

    def answer(self, number: int, task: Task) -> bytes:
        """Return a client's reply to a task that does not share forward passes."""
        return self._client(number).answer(task)

    def take(
        self, number: int, message: Message, kind: TaskKind, personal: bool = False
    ) -> tuple[Task, bytes]:
        """Unpack a message to a client; the first message of an instruction updates the session.

        Args:
            number: client index.
            message: the message.
            kind: kind of the task.
            personal: whether the task is the comparison of personal models.

        Returns:
            The task, and the frame of its refusal; empty bytes without a refusal.
        """
        task = Task()
        last_round = self._session.position.round if self._session else 0
        try:
            task = task_of(message, kind, personal)
            if task.instruction != self._latest_frame:
                self._latest_frame = b""
                instruction = decode_instruction(task.instruction)
                missed = CatchUp(task.snapshot, task.tail)
                self._session = session_at(self._session, self._runtime(0), instruction, missed)
                self._latest_frame = task.instruction
        except SamaraError as error:
            return task, make_refusal(task.instruction, number, last_round, error)
        return task, b""

    def session_for(self, instruction: TrainInstruction) -> Session:
        """Return the session at the state from which an instruction starts.

        Raises:
            CatchUpError: if the session's round or digest is not the one in the instruction.
        """
        return session_at(self._session, self._runtime(0), instruction, CatchUp())

    def group_by_pass(
        self, instruction: TrainInstruction, numbers: Sequence[int]
    ) -> list[list[int]]:
        """Return groups of clients that share forward passes, in the order of their first members.

        The clients of a group have the same quantization, and their rows do not exceed `MOST_ROWS`.
        """
        by_quantization: dict[str, list[int]] = {}
        for number in numbers:
            by_quantization.setdefault(self._quantization(number), []).append(number)
        groups = []
        for alike in by_quantization.values():
            schedule = self._runtime(alike[0]).schedule
            size = clients_per_pass(MOST_ROWS, instruction, schedule)
            groups += [alike[start : start + size] for start in range(0, len(alike), size)]
        index_of = {number: index for index, number in enumerate(numbers)}
        return sorted(groups, key=lambda group: index_of[group[0]])

    def reports(
        self, instruction: TrainInstruction, session: Session, groups: Sequence[Sequence[int]]
    ) -> dict[int, bytes]:
        """Return the frames of clients' reports or refusals, by client; groups train in parallel.

        Args:
            instruction: instruction of the round.
            session: session from `session_for`.
            groups: groups from `group_by_pass`.
        """
        frame = instruction.encode()
        parts = composition(self._config.terms, self._runtime(0).layout)
        model = parts.model(session.state)

        def train(numbers: Sequence[int]) -> list[bytes]:
            runtime = self._runtime(numbers[0])
            data = [self._data_of(one) for one in numbers]
            results: list[Report | SamaraError]
            if instruction.asks_for_components or instruction.track == INTERCEPT_TRACK:
                results = [
                    self._report_alone(RuntimeLearner(runtime, own), instruction, model)
                    for own in data
                ]
            else:
                try:
                    results = take_local_steps_together(
                        runtime, data, instruction, model, parts.shared
                    )
                except SamaraError as error:
                    results = [error] * len(numbers)
            return [
                make_refusal(frame, number, session.position.round, result)
                if isinstance(result, SamaraError)
                else result.encode()
                for number, result in zip(numbers, results, strict=True)
            ]

        frames_of_groups = self._pool.map(train, groups)
        return {
            number: frame
            for numbers, frames in zip(groups, frames_of_groups, strict=True)
            for number, frame in zip(numbers, frames, strict=True)
        }

    def _report_alone(
        self, learner: RuntimeLearner, instruction: TrainInstruction, model: State
    ) -> Report | SamaraError:
        """Return a client's components or intercept, or the error of its training.

        Args:
            learner: model and examples of the client.
            instruction: instruction of the round.
            model: int64 [d], the state at the start of the round.
        """
        terms = self._config.terms
        try:
            if instruction.track == INTERCEPT_TRACK:
                return report_intercept(learner, terms, instruction, model)
            parts = composition(terms, learner.layout)
            return train_for_a_round(learner, instruction, model, parts.shared)
        except SamaraError as error:
            return error

    def evaluations(self, task: Task, numbers: Sequence[int]) -> list[bytes]:
        """Return the frames of clients' evaluations or refusals.

        Args:
            task: evaluate task.
            numbers: client indices.
        """
        frame = task.instruction
        if task.personal:
            return list(self._pool.map(lambda number: self.answer(number, task), numbers))
        runs = [list(same) for _, same in groupby(numbers, self._quantization)]
        groups = [
            same[start : start + _EVALUATED_TOGETHER]
            for same in runs
            for start in range(0, len(same), _EVALUATED_TOGETHER)
        ]
        frames_of_groups = self._pool.map(lambda group: self._evaluate(frame, group), groups)
        return [reply for frames in frames_of_groups for reply in frames]

    def _evaluate(self, frame: bytes, numbers: Sequence[int]) -> list[bytes]:
        """Return the frames of clients' evaluations of the global model.

        All clients share forward passes.
        """
        instruction = EvaluateInstruction.decode(frame)
        runtime = self._runtime(numbers[0])
        is_text = isinstance(runtime.task, GenerationTask)
        session = self._session
        token = token_of(frame)
        assert session is not None, "a client catches up before it evaluates"
        state = composition(self._config.terms, runtime.layout).model(session.state)
        by_client = [self._data_of(number).tokenized(instruction.split) for number in numbers]
        for examples in by_client:
            runtime.prepare(examples.prompts)
        prompts = [prompt for examples in by_client for prompt in examples.prompts]
        scores = runtime.scores(state, prompts) if prompts else None
        frames = []
        start = 0
        for number, examples in zip(numbers, by_client, strict=True):
            end = start + len(examples.labels)
            client_scores = (
                runtime.scores(state, examples.prompts) if scores is None else scores[start:end]
            )
            tokens = examples.token_counts if is_text else None
            terms, split = self._config.terms, instruction.split
            columns = (global_column(terms, split, client_scores, examples.labels, tokens),)
            frames.append(Evaluation(token, number, columns).encode())
            start = end
        return frames

    def _client(self, number: int) -> Client:
        runtime = self._runtime(number)
        kind = self._quantization(number)
        if kind not in self._facts:
            self._facts[kind] = RunFacts.of(self._config, self._config, runtime)
        return self._facts[kind].client(RuntimeLearner(runtime, self._data_of(number)), self)

    def _data_of(self, number: int) -> ClientData:
        return self._data.share_of(number, len(self._devices))

    def _quantization(self, number: int) -> str:
        return self._devices[number].group.quantization

    def _runtime(self, number: int) -> ModelRuntime:
        """Return the calling thread's runtime for a client's quantization."""
        copies: dict[int, ModelRuntime] = self._of_thread.__dict__.setdefault("copies", {})
        first = self._runtimes[self._quantization(number)]
        if id(first) not in copies:
            copies[id(first)] = first.copy_sharing_weights()
        return copies[id(first)]
