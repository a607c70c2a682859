"""The grid of a fleet, which delivers Flower messages to devices on a virtual clock."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from samara.client.protocol.client import make_refusal
from samara.client.protocol.session import Session
from samara.shared.errors import SamaraError
from samara.shared.flower_compat import set_message_id
from samara.shared.proto.trainer_pb2 import Task, TaskKind
from samara.shared.protocol.frames.instructions import SeedPolicy, TrainInstruction
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.wire import PERSONAL_ACTION, RECORD
from samara.simulations.engines.in_process import FIRST_CLIENT_NODE, LocalGrid, ignore_message
from samara.simulations.fleet.clients import Clients
from samara.simulations.fleet.job import Job
from samara.simulations.fleet.virtual_clock import VirtualClock

_PERSONAL = f"{MessageType.EVALUATE}.{PERSONAL_ACTION}"


@dataclass(eq=False)
class _Asked:
    """The reports of a round: the clients that will report, and the reports computed so far."""

    instruction: TrainInstruction
    session: Session
    groups: list[list[int]]
    reports: dict[int, bytes]


@dataclass(frozen=True, eq=False)
class _Due:
    """A report that arrives at a virtual time."""

    message: Message
    job: Job
    asked: _Asked


class FleetGrid(LocalGrid):
    """A grid that delivers train messages on the virtual clock, other messages immediately.

    The grid computes a report when the server fetches it. At the same time it computes the reports
    that share forward passes with it, and reports for idle threads. It never computes a report that
    misses its deadline.

    Args:
        clock: virtual clock of the fleet.
        clients: clients that answer.
        clients_count: number of clients.
        threads: number of groups of clients that train in parallel.
        on_message: function that is called with message type and client after each answered
            message.
    """

    def __init__(
        self,
        clock: VirtualClock,
        clients: Clients,
        clients_count: int,
        threads: int,
        on_message: Callable[[str, int], None] = ignore_message,
    ) -> None:
        super().__init__()
        self._clock = clock
        self._clients = clients
        self._threads = threads
        self._on_message = on_message
        self._numbers = count()
        self._nodes = range(FIRST_CLIENT_NODE, FIRST_CLIENT_NODE + clients_count)
        self._replies: dict[str, Message] = {}
        self._due: dict[str, _Due] = {}

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes; the clock decides which nodes are reachable."""
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages, which must have one type, and return their ids."""
        sent = {}
        for message in messages:
            identifier = str(next(self._numbers))
            set_message_id(message, identifier)
            sent[identifier] = message
        if not sent:
            return []
        kind = next(iter(sent.values())).metadata.message_type
        if kind == MessageType.TRAIN:
            self._begin(sent)
        elif kind == MessageType.QUERY:
            for identifier, message in sent.items():
                hello = Task(kind=TaskKind.HELLO)
                self._answer(identifier, message, self._clients.answer(_client(message), hello))
        else:
            self._evaluate(sent, kind == _PERSONAL)
        return list(sent)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that have arrived; each reply is returned once."""
        wanted = set(message_ids)
        now = self._clock.now()
        there = [i for i in self._due if i in wanted and self._due[i].job.ended <= now]
        for identifier in there:
            due = self._due.pop(identifier)
            self._answer(identifier, due.message, self._report(due))
        return [self._replies.pop(i) for i in sorted(wanted & self._replies.keys(), key=int)]

    def _begin(self, sent: dict[str, Message]) -> None:
        """Start the round's instruction on every device."""
        jobs: dict[str, Job] = {}
        size = 0
        measuring = 0
        instruction = None
        for identifier, message in sent.items():
            number = _client(message)
            task, refusal = self._clients.take(number, message, TaskKind.TRAIN)
            if refusal:
                self._answer(identifier, message, refusal)
                continue
            if instruction is None:
                instruction = TrainInstruction.decode(task.instruction)
                size = _report_size(instruction)
                measuring = sum(map(instruction.measures_curvature, range(instruction.steps)))
            down = len(task.instruction) + _missed_bytes(task)
            steps = instruction.steps
            jobs[identifier] = self._clock.ask(
                number, instruction.round, down, size, steps, measuring
            )
        if instruction is None:
            return
        coming = [i for i, job in jobs.items() if job.outcome == "reported"]
        coming.sort(key=lambda i: (jobs[i].ended, jobs[i].device))
        try:
            session = self._clients.session_for(instruction)
        except SamaraError as error:
            frame = instruction.encode()
            for identifier in jobs:
                number = jobs[identifier].device
                refusal = make_refusal(frame, number, 0, error)
                self._answer(identifier, sent[identifier], refusal)
            return
        groups = self._clients.group_by_pass(instruction, [jobs[i].device for i in coming])
        asked = _Asked(instruction, session, groups, {})
        self._due |= {i: _Due(sent[i], jobs[i], asked) for i in coming}

    def _report(self, due: _Due) -> bytes:
        """Return a report's frame.

        A missing report is computed together with its group and one group for each other thread.
        """
        asked = due.asked
        number = due.job.device
        if number not in asked.reports:
            ahead = (group for group in asked.groups if group[0] not in asked.reports)
            own = next(group for group in asked.groups if number in group)
            others = [group for group in islice(ahead, self._threads) if group is not own]
            groups: Sequence[list[int]] = [own, *others[: self._threads - 1]]
            asked.reports |= self._clients.reports(asked.instruction, asked.session, groups)
        return asked.reports[number]

    def _evaluate(self, sent: dict[str, Message], personal: bool) -> None:
        """Answer evaluate messages in zero virtual time; later messages also carry their bytes."""
        asked: dict[str, int] = {}
        task = Task()
        for identifier, message in sent.items():
            number = _client(message)
            task, refusal = self._clients.take(number, message, TaskKind.EVALUATE, personal)
            self._clock.owe(number, _missed_bytes(task))
            if refusal:
                self._answer(identifier, message, refusal)
            else:
                asked[identifier] = number
        answers = self._clients.evaluations(task, list(asked.values()))
        for identifier, answer in zip(asked, answers, strict=True):
            self._answer(identifier, sent[identifier], answer)

    def _answer(self, identifier: str, message: Message, frame: bytes) -> None:
        content = RecordDict({RECORD: ConfigRecord({"frame": frame})})
        self._replies[identifier] = Message(content, reply_to=message)
        self._on_message(message.metadata.message_type, _client(message))


def _client(message: Message) -> int:
    return message.metadata.dst_node_id - FIRST_CLIENT_NODE


def _missed_bytes(task: Task) -> int:
    return len(task.snapshot) + len(task.tail)


def _report_size(instruction: TrainInstruction) -> int:
    """Return the size of a report's frame in bytes; the reported values do not affect it."""
    gradients = np.zeros((instruction.steps, instruction.queries), np.float32)
    pooled = instruction.seed_policy is SeedPolicy.POOL
    curvature = 0.0 if instruction.measured_directions(instruction.steps) else None
    report = Report(
        bytes(8),
        0,
        1,
        0.0,
        instruction.sums(gradients) if pooled else gradients,
        summed_steps=instruction.steps if pooled else 0,
        curvature=curvature,
    )
    return len(report.encode())
