"""The requests of a gateway to its phones and boards, and their answers."""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from samara.shared.proto.trainer_pb2 import Task

RECONNECT_SECONDS = 60.0
"""Seconds for which a request waits for a phone or board to reattach."""
MAX_PART_BYTES = 2**19
"""Size limit of the answers in a reply, in bytes; servers accept 2²⁰ bytes.

A single answer may be longer.
"""


@dataclass(frozen=True)
class SignedAnswer:
    """The signed answer of a phone or board to a request.

    Attributes:
        public_key: public key of the phone or board, PEM.
        frame: hello, report, evaluation, masking frame or refusal.
        signature: signature over instruction and frame.
    """

    public_key: bytes
    frame: bytes
    signature: bytes

    def __len__(self) -> int:
        """Return the size of the answer in bytes."""
        return len(self.public_key) + len(self.frame) + len(self.signature)


@dataclass(eq=False)
class GatewayRequest:
    """A request to some phones and boards, with their answers so far.

    Attributes:
        task: the task; number and seconds are set for each phone or board.
        config: run config as sorted JSON, which boards get as settings.
        start: time of the request, monotonic seconds.
        end: deadline for answers, monotonic seconds.
        shares: sealed shares by client index, for a train instruction with masks.
        answers: futures of the answers, by client index.
    """

    task: Task
    config: bytes
    start: float
    end: float
    shares: dict[int, bytes] = field(default_factory=dict)
    answers: dict[int, asyncio.Future[SignedAnswer]] = field(default_factory=dict)

    @property
    def key(self) -> tuple[int, bytes, bool]:
        """The kind and instruction that identify equal requests."""
        return self.task.kind, self.task.instruction, self.task.personal

    def awaits_answer_of(self, client: int) -> bool:
        """Return whether this client was asked and has not answered yet."""
        return client in self.answers and not self.answers[client].done()

    def add_clients(self, clients: Iterable[int], shares: Mapping[int, bytes]) -> list[int]:
        """Request the answers of further clients; return the clients that were not asked before."""
        loop = asyncio.get_running_loop()
        new = [client for client in clients if client not in self.answers]
        self.answers |= {client: loop.create_future() for client in new}
        self.shares |= shares
        return new

    def answered(self, clients: Iterable[int]) -> list[int]:
        """Return the clients whose answers have arrived but were not yet taken."""
        return [c for c in clients if c in self.answers and self.answers[c].done()]

    def take_answers(
        self, clients: Iterable[int], most_bytes: float = math.inf
    ) -> dict[int, SignedAnswer]:
        """Remove and return the available answers of some clients.

        Args:
            clients: the clients.
            most_bytes: number of bytes after which no further answer is taken; the first answer is
                always taken.
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
            is_expected: function that returns whether a client is attached or may reattach, given
                the time of the request in monotonic seconds.
        """
        if time.monotonic() >= self.end:
            return {}
        missing = [client for client in clients if self.awaits_answer_of(client)]
        return {c: self.answers[c] for c in missing if is_expected(c, self.start)}

    def close(self) -> None:
        """Stop waiting for answers."""
        for answer in self.answers.values():
            answer.cancel()  # has no effect on finished answers
