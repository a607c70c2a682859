"""The messages of a round with masks: what each client is sent, and which answers are sound."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from samara.server.rounds.replies import ReplyValidator, ValidatedReplies
from samara.server.rounds.unmasking import MaskedRound
from samara.server.transport.messages import make_message
from samara.shared.errors import ReportError
from samara.shared.frames.instructions import TrainInstruction, token_of
from samara.shared.frames.masking import (
    MaskingKeys,
    RevealedShares,
    SealedShares,
    SurvivorSignature,
)
from samara.shared.frames.vector_report import MaskedReport
from samara.shared.ledger.records import CatchUp
from samara.shared.secure_aggregation.masks import Masked
from samara.shared.wire import MASKING_ACTION

MASKING_MESSAGE = f"{MessageType.QUERY}.{MASKING_ACTION}"
"""Flower's message type of the messages of secure aggregation."""

Answer = TypeVar("Answer", MaskingKeys, SealedShares, SurvivorSignature, RevealedShares)


@dataclass
class MaskingExchange:
    """A round with masks on its way.

    Attributes:
        grid: the grid that sends its messages.
        validator: validator of the replies.
        instruction: its train instruction.
        nodes: Flower's id of each client's node.
        timeout: how long answers to a message are waited for, in seconds.
        known: keys, neighbours and who has masks with whom, of each bucket that has a sum; of all
            clients together without buckets.
        problem: why the round is abandoned; empty if it is not.
        active: clients that have done what was last asked.
        idle: clients in buckets that were left out before they were asked for reports.
        reporting: clients with a masked report.
        refused: by client, the reason why its answer could not be used.
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
        """Send each client a frame; return the sound answers by client, ascending.

        Args:
            frames: frame for each client.
            kind: type of the expected answers.
            check: raises an error for an answer that cannot be used.
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
                raise ReportError("it answers what it was not sent")
            check(answer)

        replies = self.grid.send_and_receive(messages, timeout=self.timeout)
        valid = self.validator.validate_masking(replies, kind, self.token, check_answer)
        self._take(valid)
        return dict(sorted(valid.answers.items()))

    def receive(
        self, replies: Iterable[Message], check: Callable[[MaskedReport], None]
    ) -> dict[int, Masked]:
        """Return the masked vectors in replies to the train instruction by client, ascending.

        Args:
            replies: the replies.
            check: raises an error for a report that cannot be used.
        """

        def check_report(report: MaskedReport) -> None:
            check(report)
            if not any(report.client in known.partners for known in self.known):
                raise ReportError("its report has masks that nobody knows of")

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
