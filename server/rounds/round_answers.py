"""Validation and aggregation of the answers to a round's instruction."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from samara.server.rounds.aggregation import (
    TOO_LARGE,
    AggregatedRound,
    RoundAggregator,
)
from samara.server.rounds.event_log import client_fields
from samara.server.rounds.planner import Request
from samara.server.rounds.report_validation import ReplyValidator
from samara.server.store import RunStore
from samara.shared.errors import TrainingError
from samara.shared.protocol.frames.instructions import (
    TrainInstruction,
)
from samara.shared.protocol.layout import Layout
from samara.shared.settings.config import RunConfig


@dataclass(frozen=True)
class AnsweredRound:
    """A round with validated and aggregated replies.

    Attributes:
        aggregated: delta of the round and its measurements.
        reporting: clients whose report is used.
        refused: reason for refusing a client's reply, by client.
        bytes_up: bytes of all replies.
        bytes_down: bytes of all messages.
        clients: per-client fields of the round's event.
        late: number of the round that the client's late report answers, by client.
    """

    aggregated: AggregatedRound
    reporting: Collection[int]
    refused: Mapping[int, str]
    bytes_up: int
    bytes_down: int
    clients: Mapping[str, Mapping[str, Any]]
    late: Mapping[str, int] = field(default_factory=dict)


class RoundAnswers:
    """The part of a strategy that validates and aggregates the answers to a round's instruction.

    Subclasses handle runs with differential privacy.

    Args:
        config: settings of the run.
        store: folder of the run.
        validator: validator of the replies.
    """

    def __init__(self, config: RunConfig, store: RunStore, validator: ReplyValidator) -> None:
        self._validator = validator
        self._aggregator = RoundAggregator(config, store)

    def joint_clip(self, number: int) -> float:
        """Return the joint clip of a round's instruction; 0 without an adaptive clip."""
        return 0.0

    def check_budget(self, instruction: TrainInstruction) -> None:
        """Check that the privacy budget allows a round; without privacy, every round is allowed.

        Raises:
            TrainingError: if the budget does not allow the round.
        """

    def check_intercepts(self, instruction: TrainInstruction, layout: Layout) -> None:
        """Check that a round of intercepts is possible.

        Args:
            instruction: instruction of the round.
            layout: layout of the run, with a label bias.

        Raises:
            TrainingError: if the privacy budget allows no further round, or if a report has fewer
                numbers than the intercept.
        """
        bias = layout.label_bias
        assert bias is not None, "a run with intercepts has a label bias"
        numbers = instruction.report_scalars
        wanted = bias.stop - bias.start - 1
        if numbers < wanted:
            raise TrainingError(
                f"an intercept has {wanted} numbers, but a report under differential privacy has "
                f"steps × queries = {numbers}; increase steps or queries"
            )
        self.check_budget(instruction)

    def prepare(self, request: Request[TrainInstruction], grid: Grid) -> Request[TrainInstruction]:
        """Prepare a round and return its request.

        With secure aggregation, the clients agree on masks. Otherwise the request is unchanged.

        Args:
            request: instruction of the round and the messages to its cohort.
            grid: grid that sends the messages.

        Raises:
            LedgerError: if the run's folder cannot be written.
        """
        return request

    def fold(
        self, request: Request[TrainInstruction], replies: Iterable[Message], minimum: int
    ) -> AnsweredRound:
        """Validate and aggregate the replies to a round's instruction.

        Args:
            request: instruction of the round and the messages to its cohort.
            replies: replies to the instruction.
            minimum: minimum number of reports with which the round changes the model.

        Raises:
            LedgerError: if a release cannot be written.
        """
        valid = self._validator.validate_reports(replies, request.instruction)
        aggregated = self._aggregator.aggregate(
            request.instruction, valid.answers, valid.late, minimum
        )
        self._validator.leave_out(valid, aggregated.too_large, TOO_LARGE)
        reports = valid.all_reports()
        return AnsweredRound(
            aggregated,
            reports.keys(),
            valid.refused,
            sum(valid.bytes_up.values()),
            sum(request.bytes_down.values()),
            client_fields(reports, valid.bytes_up, request.bytes_down, valid.costs),
            {str(client): asked.round for client, (asked, _) in valid.late.items()},
        )
