"""The messages of a round with masks (secure aggregation), and the checks of the answers."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from samara.server.rounds.report_validation import ReplyValidator, ValidatedReplies
from samara.server.rounds.unmasking import MaskedRound
from samara.server.transport.messages import make_message
from samara.shared.errors import ReportError
from samara.shared.protocol.frames.instructions import TrainInstruction, token_of
from samara.shared.protocol.frames.masking import (
    MaskingKeys,
    RevealedShares,
    SealedShares,
    SurvivorSignature,
)
from samara.shared.protocol.frames.vector_report import MaskedReport
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.secure_aggregation.masks import Masked
from samara.shared.protocol.wire import MASKING_ACTION

MASKING_MESSAGE = f"{MessageType.QUERY}.{MASKING_ACTION}"
"""Flower's message type for secure aggregation."""

Answer = TypeVar("Answer", MaskingKeys, SealedShares, SurvivorSignature, RevealedShares)


@dataclass
class MaskingExchange:
    """A round with masks in progress.

    Attributes:
        grid: grid that sends the messages.
        validator: validator of the replies.
        instruction: train instruction of the round.
        nodes: Flower's node id of each client.
        timeout: time limit for the answers to a message, in seconds.
        known: keys, neighbours and masking partners, one entry per bucket with a sum. Without
            buckets, the list has a single entry for all clients.
        problem: reason why the round is abandoned; empty if the round continues.
        active: clients that answered the last message.
        idle: clients whose bucket was left out before reports were requested.
        reporting: clients with a masked report.
        refused: reason for refusing a client's answer, by client.
        bytes_up, bytes_down: bytes of all messages, by client.
    """

    grid: Grid
    validator: ReplyValidator
    instruction: TrainInstruction
    nodes: dict[int, int]
    timeout: float
    known: list[MaskedRound] = field(default_factory=list)
    problem: str = ""
    active: Collection[int] = ()
    idle: Collection[int] = ()
    reporting: Collection[int] = ()
    refused: dict[int, str] = field(default_factory=dict)
    bytes_up: Counter[int] = field(default_factory=Counter)
    bytes_down: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.token = token_of(self.instruction.encode())
        """Token of the instruction, 8 bytes."""

    def ask(
        self,
        frames: Mapping[int, bytes],
        kind: type[Answer],
        check: Callable[[Answer], None] = lambda answer: None,
    ) -> dict[int, Answer]:
        """Send each client a frame; return the valid answers by client, ascending.

        Args:
            frames: frame for each client.
            kind: frame type of the expected answers.
            check: function that raises a `SamaraError` for an unusable answer.
        """
        group = str(self.instruction.round)
        messages = [
            make_message(self.nodes[c], MASKING_MESSAGE, group, frame, CatchUp(), self.timeout)
            for c, frame in frames.items()
        ]
        for client, frame in frames.items():
            self.bytes_down[client] += len(frame)

        def check_answer(answer: Answer) -> None:
            if answer.client not in frames:
                raise ReportError("it answers a message that was not sent to it")
            check(answer)

        replies = self.grid.send_and_receive(messages, timeout=self.timeout)
        valid = self.validator.validate_masking(replies, kind, self.token, check_answer)
        self._take(valid)
        return dict(sorted(valid.answers.items()))

    def receive(
        self, replies: Iterable[Message], check: Callable[[MaskedReport], None]
    ) -> dict[int, Masked]:
        """Return the masked vectors in the replies to the train instruction, by client, ascending.

        Args:
            replies: the replies.
            check: function that raises a `SamaraError` for an unusable report.
        """

        def check_report(report: MaskedReport) -> None:
            check(report)
            if not any(report.client in known.partners for known in self.known):
                raise ReportError("no other client of this round exchanged masks with it")

        number = self.instruction.round - 1
        valid = self.validator.validate_masking(
            replies, MaskedReport, self.token, check_report, number
        )
        self._take(valid)
        self.reporting = sorted(valid.answers)
        return {client: valid.answers[client].vector for client in self.reporting}

    def _take(self, valid: ValidatedReplies[Any]) -> None:
        self.active = valid.answers.keys()
        self.refused |= valid.refused
        self.bytes_up.update(valid.bytes_up)
