"""The answers of a round: replies that are validated, aggregated and counted."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from samara.server.rounds.event_log import client_fields, hidden_client_fields
from samara.server.rounds.planner import Request
from samara.server.rounds.private_aggregator import PrivateAggregator
from samara.server.rounds.round_aggregator import TOO_LARGE, AggregatedRound, RoundAggregator
from samara.server.rounds.secure_aggregation import SecureAggregation
from samara.server.rounds.validator import ReplyValidator
from samara.server.store import RunStore
from samara.shared.config import RunConfig
from samara.shared.errors import TrainingError
from samara.shared.frames.instructions import TrainInstruction
from samara.shared.layout import Layout


@dataclass(frozen=True)
class AnsweredRound:
    """A round whose replies were validated and aggregated.

    Attributes:
        aggregated: delta of the round, and what it says of the step size.
        reporting: clients with a report that counts.
        refused: by client without one, the reason why its reply cannot be used.
        bytes_up: bytes of all replies.
        bytes_down: bytes of all messages.
        clients: what the round's event says of each client with a report.
        late: by client whose report is late, the round that it answers.
    """

    aggregated: AggregatedRound
    reporting: Collection[int]
    refused: Mapping[int, str]
    bytes_up: int
    bytes_down: int
    clients: Mapping[str, Mapping[str, Any]]
    late: Mapping[str, int] = field(default_factory=dict)


class RoundAnswers:
    """Folds the answers to a round's instruction.

    Args:
        config: settings of the run.
        store: folder of the run.
        validator: validator of the replies.
    """

    def __init__(self, config: RunConfig, store: RunStore, validator: ReplyValidator) -> None:
        self._validator = validator
        self._private = PrivateAggregator(config, store) if config.privacy.is_on else None
        self._aggregator = RoundAggregator(config, store)
        self._masking: SecureAggregation | None = None
        if self._private and config.privacy.secure_aggregation:
            self._masking = SecureAggregation(config, store, validator, self._private)

    def prepare(self, request: Request[TrainInstruction], grid: Grid) -> Request[TrainInstruction]:
        """Return a round's request after what comes before it: with secure aggregation, masks.

        Args:
            request: instruction of the round, and the messages to its cohort.
            grid: the grid that sends messages.

        Raises:
            LedgerError: if the run's folder cannot be written.
        """
        return self._masking.begin(request, grid) if self._masking else request

    def joint_clip(self, number: int) -> float:
        """Return the clip that a round's instruction has; 0 without an adaptive one."""
        return self._private.joint_clip(number) if self._private else 0.0

    def check_budget(self, instruction: TrainInstruction) -> None:
        """Raise an error if a round would spend more privacy than the run may.

        Raises:
            TrainingError: if it would.
        """
        if self._private:
            self._private.check_budget(instruction)

    def check_intercepts(self, instruction: TrainInstruction, layout: Layout) -> None:
        """Raise an error if there can be no round of intercepts.

        Args:
            instruction: instruction of the round.
            layout: layout of the run, with a label bias.

        Raises:
            TrainingError: if privacy allows no further round, or its rounds have too few numbers.
        """
        bias = layout.label_bias
        assert bias is not None, "the method readout has a label bias"
        numbers, wanted = instruction.report_scalars, bias.stop - bias.start - 1
        if numbers < wanted:
            raise TrainingError(
                f"an intercept has {wanted} numbers, and a report under differential privacy has "
                f"steps × queries = {numbers}; raise one of them"
            )
        self.check_budget(instruction)

    def fold(
        self, request: Request[TrainInstruction], replies: Iterable[Message], minimum: int
    ) -> AnsweredRound:
        """Return a round with the replies to its instruction.

        Args:
            request: instruction of the round, and who was asked.
            replies: replies to it.
            minimum: number of reports below which the round changes nothing.

        Raises:
            LedgerError: if a release cannot be written.
        """
        instruction, bytes_down = request.instruction, request.bytes_down
        if self._private and self._masking:
            masked, expected = self._masking.finish(replies), request.expected_reports
            total, scalars = masked.total, instruction.report_scalars
            released = self._private.aggregate_total(instruction, total, minimum, expected)
            return AnsweredRound(
                released,
                masked.active,
                masked.refused,
                sum(masked.bytes_up.values()),
                sum(masked.bytes_down.values()),
                hidden_client_fields(scalars, masked.reporting, masked.bytes_up, masked.bytes_down),
            )
        sent = sum(bytes_down.values())
        if self._private:
            private, expected = self._private, request.expected_reports
            vectors = self._validator.validate_vectors(replies, instruction, private.mechanism)
            released = private.aggregate(instruction, vectors, minimum, expected)
            scalars = instruction.report_scalars
            fields = hidden_client_fields(scalars, vectors.answers, vectors.bytes_up, bytes_down)
            up = sum(vectors.bytes_up.values())
            return AnsweredRound(
                released, vectors.answers.keys(), vectors.refused, up, sent, fields
            )
        valid = self._validator.validate_reports(replies, instruction)
        aggregated = self._aggregator.aggregate(instruction, valid, minimum)
        self._validator.leave_out(valid, aggregated.too_large, TOO_LARGE)
        reports = valid.all_reports()
        return AnsweredRound(
            aggregated,
            reports.keys(),
            valid.refused,
            sum(valid.bytes_up.values()),
            sent,
            client_fields(reports, valid.bytes_up, bytes_down, valid.costs),
            {str(client): asked.round for client, (asked, _) in valid.late.items()},
        )
