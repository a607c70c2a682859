"""The requests of a gateway to its phones and boards, and their answers."""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from samara.shared.proto.trainer_pb2 import Task

RECONNECT_SECONDS = 60.0
"""Seconds that a request waits for a phone or board to attach again."""
MAX_PART_BYTES = 2**19
"""Most bytes of the answers in a reply, but for one that is longer itself; a server takes 2²⁰."""


@dataclass(frozen=True)
class SignedAnswer:
    """The answer of a phone or board to a request, with its key and signature.

    Attributes:
        public_key: public key of the phone or board, PEM.
        frame: hello, report, evaluation, masking frame or refusal.
        signature: signature over instruction and frame.
    """

    public_key: bytes
    frame: bytes
    signature: bytes

    def __len__(self) -> int:
        """Return its length in bytes."""
        return len(self.public_key) + len(self.frame) + len(self.signature)


@dataclass(eq=False)
class GatewayRequest:
    """A request to some phones and boards, with their answers so far.

    Attributes:
        task: the task; number and seconds are set for each of them.
        config: run config, sorted JSON, which boards get as settings.
        start: when it was asked, monotonic seconds.
        end: end of the time to answer, monotonic seconds.
        shares: sealed shares by client index, where a train instruction has masks.
        answers: by client index, what will be the answer.
    """

    task: Task
    config: bytes
    start: float
    end: float
    shares: dict[int, bytes] = field(default_factory=dict)
    answers: dict[int, asyncio.Future[SignedAnswer]] = field(default_factory=dict)

    @property
    def key(self) -> tuple[int, bytes, bool]:
        """The kind and instruction by which two requests are the same."""
        return self.task.kind, self.task.instruction, self.task.personal

    def awaits_answer_of(self, client: int) -> bool:
        """Return whether this client's answer is requested and missing."""
        return client in self.answers and not self.answers[client].done()

    def add_clients(self, clients: Iterable[int], shares: Mapping[int, bytes]) -> list[int]:
        """Request the answers of further clients; return those that were not asked so far."""
        loop = asyncio.get_running_loop()
        new = [client for client in clients if client not in self.answers]
        self.answers |= {client: loop.create_future() for client in new}
        self.shares |= shares
        return new

    def answered(self, clients: Iterable[int]) -> list[int]:
        """Return those of the clients whose answers are there, and were not taken."""
        return [c for c in clients if c in self.answers and self.answers[c].done()]

    def take_answers(
        self, clients: Iterable[int], most_bytes: float = math.inf
    ) -> dict[int, SignedAnswer]:
        """Return the answers of some clients that there are, which are not kept.

        Args:
            clients: the clients.
            most_bytes: bytes after which no further answer is taken; the first one always is.
        """
        taken: dict[int, SignedAnswer] = {}
        for client in self.answered(clients):
            most_bytes -= len(self.answers[client].result())
            if taken and most_bytes < 0:
                break
            taken[client] = self.answers.pop(client).result()
        return taken

    def pending(
        self, clients: Collection[int], is_expected: Callable[[int, float], bool]
    ) -> dict[int, asyncio.Future[SignedAnswer]]:
        """Return the missing answers of some clients that may still arrive.

        Args:
            clients: the clients.
            is_expected: returns whether a client is attached, or may be again, when it was asked
                at a time (monotonic seconds).
        """
        if time.monotonic() >= self.end:
            return {}
        missing = [client for client in clients if self.awaits_answer_of(client)]
        return {c: self.answers[c] for c in missing if is_expected(c, self.start)}

    def close(self) -> None:
        """Wait for no further answers."""
        for answer in self.answers.values():
            answer.cancel()  # no effect on answers that are done
