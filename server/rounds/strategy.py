"""The strategy: it runs each round of federated zeroth-order training, from plan to ledger.

Flower's own aggregation is not used, because it averages every number, even seeds. A message holds
one frame, and the strategy validates every frame. It drops an invalid frame and keeps the others.
"""

import logging
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from samara.server.restored_run import RestoredRun
from samara.server.rounds.evaluation import find_best_round, find_lowest_loss, summarize_evaluations
from samara.server.rounds.event_log import (
    EvaluationEvent,
    EventLog,
    Meter,
    RoundEvent,
    describe_refusals,
    reasons_by_text,
)
from samara.server.rounds.planner import ClientHealth, Request, RoundPlanner
from samara.server.rounds.private_aggregator import PrivateRoundAnswers
from samara.server.rounds.recorded_cohorts import RecordedCohorts
from samara.server.rounds.report_validation import LateReportFilter, ReplyValidator
from samara.server.rounds.round_answers import RoundAnswers
from samara.server.rounds.secure_aggregation import MaskedRoundAnswers
from samara.server.store import RunStore
from samara.server.transport.roster import Roster
from samara.shared.errors import LedgerError, TrainingError
from samara.shared.protocol.frames.instructions import (
    EvaluateInstruction,
    Split,
    TrainInstruction,
    token_of,
)
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.round_delta import RoundDelta, revert_delta
from samara.shared.protocol.step_size import (
    STEP_SIZE_FILE,
    RecordedStepSize,
    StepSize,
    component_rate,
)
from samara.shared.protocol.wire import PERSONAL_ACTION
from samara.shared.settings.config import RunConfig
from samara.shared.terms.description import describe_round

log = logging.getLogger("samara.server")


class ScalarStrategy(Strategy):
    """Federated zeroth-order training by exact replay of scalars.

    `run_round` contains a round from beginning to end. Flower runs this method in four parts, from
    `configure_train` to `aggregate_evaluate`, and sends the messages between these parts.

    Args:
        config: settings of the run.
        store: folder of the run; training continues after its ledger's last round.
        roster: clients of the run.
        cohorts: cohorts of a recorded run, used in place of sampled cohorts.
        meters: objects that add fields to round events.

    Attributes:
        event_log: log of the rounds and evaluations of the run.
    """

    def __init__(
        self,
        config: RunConfig,
        store: RunStore,
        roster: Roster,
        cohorts: RecordedCohorts | None = None,
        meters: Sequence[Meter] = (),
    ) -> None:
        self._config, self._store, self._roster = config, store, roster
        self._cohorts, self._meters = cohorts, meters
        self._health = ClientHealth(config.cohort.patience)
        self._late_reports = LateReportFilter(config.cohort.late_rounds)
        self.event_log = EventLog(store, config.federated_rounds)
        self._planner = RoundPlanner(config, store, roster, self._health, cohorts)
        self._validator = ReplyValidator(config, roster, self._late_reports, self.event_log)
        answers = RoundAnswers
        if config.privacy.is_on:
            is_masked = config.privacy.secure_aggregation
            answers = MaskedRoundAnswers if is_masked else PrivateRoundAnswers
        self._answers = answers(config, store, self._validator)
        given = None if config.learning_rate == "auto" else config.learning_rate
        self._last_round = last = config.federated_rounds
        if given is None and config.differences == "components" and last:
            training = config.data.clients - config.cohort.newcomers
            given = component_rate(store.layout, last, config.queries, training)
        decreasing = config.learning_rate_schedule == "linear"
        self._validation_every = config.evaluate.every if config.privacy.allows_evaluation else 0
        size = StepSize(last, given, config.epsilon, decreasing)
        done = min(store.ledger.position.round, last)
        self._step_sizes = RecordedStepSize(size, store.folder / STEP_SIZE_FILE, done)
        self._request: Request[TrainInstruction] | None = None
        self._sequence: Generator[list[Message], Iterable[Message], None] | None = None
        self._validation_messages: list[Message] = []

    @property
    def round(self) -> int:
        """The last round in the ledger."""
        return self._store.ledger.position.round

    @property
    def rounds(self) -> int:
        """The number of rounds of the whole run."""
        last = self._last_round
        return min(last, self._cohorts.last_round) if self._cohorts else last

    @property
    def nodes(self) -> Collection[int]:
        """Flower's node ids of the clients."""
        return self._roster.entries.keys()

    def events(self) -> list[dict[str, Any]]:
        """Return the rounds and evaluations of the run so far."""
        return self._store.events()

    def complete_result(self, result: dict[str, Any]) -> dict[str, Any]:
        """Add the last round and its digest to the run's result."""
        ledger = self._store.ledger
        end = {"final_round": self.round, "final_digest": ledger.digest.hex()}
        return result | end

    def run_round(self, grid: Grid) -> Generator[list[Message], Iterable[Message], None]:
        """Run one round; yield the messages to train, then the messages to evaluate.

        The caller (Flower or `ClusteredStrategy`) sends each list of messages, and then sends their
        replies into the generator. As a generator, the method contains the whole sequence of a
        round.

        Raises:
            TrainingError: if too many consecutive rounds had no usable report; the message gives
                the reasons.
            LedgerError: if the round cannot be written.
        """
        # 1. Plan: sample the cohort and write its instruction.
        joint_clip = self._answers.joint_clip(self.round + 1)
        request = self._planner.plan_round(grid, self._step_sizes.size, joint_clip)
        instruction = request.instruction
        number = request.instruction.round
        self._late_reports.add_instruction(instruction)
        self._answers.check_budget(instruction)

        # 2. Exchange: agree on masks if needed, send the instruction, and receive replies until
        # there are enough replies or the time is over.
        self._request = request = self._answers.prepare(request, grid)
        messages = yield request.messages
        if self._cohorts:
            messages = self._cohorts.take_replies(number, messages, self._roster)

        # 3. Validate: keep valid reports, and refuse invalid reports. 4. Aggregate: combine the
        # valid reports into a round delta, and count failures.
        answered = self._answers.fold(request, messages, self._planner.minimum)
        aggregated = answered.aggregated
        delta, problem = aggregated.delta, aggregated.problem
        absent = self._update_health(request, answered.reporting, answered.refused)

        # 5. Step size: record the observation; if the loss rose, revert earlier rounds instead.
        size = self._step_sizes.record(aggregated.observation, aggregated.observed)
        if size.back_to is not None:
            delta, reached = self._revert(number, token_of(instruction.encode()), size.back_to)
            problem = f"the loss rose, so the model returns to its state after round {reached}"

        # 6. Append: the ledger replays and stores the delta, the event log writes the event, and
        # the ledger drops old records.
        event = RoundEvent(
            round=number,
            loss=aggregated.loss,
            learning_rate=instruction.learning_rate,
            reports=aggregated.reports if size.back_to is None else 0,
            refused=reasons_by_text(answered.refused),
            absent=absent,
            late=answered.late,
            resting=self._health.resting_clients(number + 1),
            problem=problem,
            back_to=size.back_to,
            bytes_up=answered.bytes_up,
            bytes_down=answered.bytes_down,
            clients=answered.clients,
        )
        more: dict[str, Any] = {**aggregated.privacy}
        for meter in self._meters:
            more |= meter.finish_round()
        if by_stream := self._roster.by_stream(answered.reporting):
            more["by_stream"] = by_stream
        self.event_log.append_round(delta, event, **more)
        self._late_reports.mark_folded(delta)
        self._compact_ledger()
        self._stop_if_nothing_is_learned(event)

        # 7. Evaluate: every `evaluate.every` rounds, all connected clients validate the model.
        if self._is_validation_round(number):
            validation = self._planner.plan_evaluation(grid, Split.VALIDATION)
            messages = yield validation.messages
            self._record_evaluation(validation, messages)
        else:
            yield []

    def summary(self) -> None:
        """Log the number of trained parameters, and the work of a client in a round."""
        size = f"{self._store.layout.size:,} trained numbers"
        log.info("%s", "; ".join([*describe_round(self._planner.terms), size]))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Begin a round; return its messages."""
        self._sequence = self.run_round(grid)
        return next(self._sequence)

    def has_enough(self, replies: Sequence[Message]) -> bool:
        """Return whether the round has enough replies."""
        return self._request is not None and self._request.has_enough(replies)

    @property
    def asks_nobody(self) -> bool:
        """Return whether no client receives the round's instruction."""
        return self._request is None or not self._request.messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Process the replies to the train instruction, and prepare the round's validation.

        Raises:
            TrainingError: if too many consecutive rounds had no usable report; the message gives
                the reasons.
            LedgerError: if the round cannot be written.
        """
        assert self._sequence is not None, "configure_train must be called first"
        self._validation_messages = self._sequence.send(replies)
        event = self.event_log.last
        return None, MetricRecord({"loss": event["loss"] or 0.0, "reports": event["reports"]})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of the round's validation; empty if the round has no validation."""
        return self._validation_messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """End the round with the replies to its validation."""
        assert self._sequence is not None, "configure_train must be called first"
        with suppress(StopIteration):
            self._sequence.send(replies)
        event = self.event_log.last
        if event.get("event") != "evaluation":
            return None
        return MetricRecord(
            {
                f"{name} accuracy": column["mean_client_accuracy"]
                for name, column in event["columns"].items()
            }
        )

    def missing_evaluations(self, splits: Sequence[Split]) -> Sequence[Split]:
        """Return the splits that must be evaluated before the next round and have no record yet.

        Before the first round, all given splits must be evaluated. After a later round, only its
        validation can be missing, if the server stopped before it was recorded.

        Args:
            splits: splits that are evaluated before the first round.
        """
        if not self.round:
            return splits
        is_due = self._is_validation_round(self.round)
        return (
            [Split.VALIDATION] if is_due and not self.event_log.has_validation(self.round) else []
        )

    def evaluate_missing(self, grid: Grid, splits: Sequence[Split]) -> None:
        """Run the evaluations that are due before the next round and have no record yet."""
        for split in self.missing_evaluations(splits):
            self.evaluate(grid, split)

    def evaluate(self, grid: Grid, split: Split, action: str = "") -> None:
        """Let all connected clients evaluate the current state, and record the result.

        Args:
            grid: the grid that sends the messages.
            split: the split of each client to evaluate.
            action: empty for the global model, `PERSONAL_ACTION` for the comparison of personal
                models.
        """
        request = self._planner.plan_evaluation(grid, split, action)
        self._log_evaluation(grid, split)
        timeout = self._config.cohort.timeout
        replies = grid.send_and_receive(request.messages, timeout=timeout)
        self._record_evaluation(request, replies, personal=action == PERSONAL_ACTION)

    def _log_evaluation(self, grid: Grid, split: Split) -> None:
        """Log the number of examples in the next evaluation."""
        entries = self._roster.entries_of(grid.get_node_ids()).values()
        rows = f"{sum(e.most_examples(split) for e in entries):,} {split.name.lower()} examples"
        log.info("evaluating %s of %d clients", rows, len(entries))

    def return_to_best(self, always: bool = False) -> None:
        """Revert to the best validated round, if `evaluate.best` is set.

        If early rounds were compacted away, the best of the remaining rounds is restored.

        Args:
            always: whether to append a reverting round even if the last round has the lowest loss.
                Clusters always append this round, so that they end with equal round numbers.

        Raises:
            LedgerError: if the reverting round cannot be written.
        """
        ledger = self._store.ledger
        last = self._last_round
        wanted = self._config.evaluate.best
        if not wanted or self.round != last:
            return
        oldest = next(read_ledger(ledger.folder)).delta.round - 1
        reachable = [event for event in self._store.events() if event["round"] >= oldest]
        find = find_lowest_loss if wanted == "loss" else find_best_round
        best = find(reachable, self._config.newcomers)
        if wanted == "loss" and best in (None, last) and not always:
            return
        delta, reached = self._revert(last + 1, bytes(8), last if best is None else min(best, last))
        event = RoundEvent(
            round=last + 1,
            problem=f"round {reached} was best on validation, so the model returns to its state",
            back_to=reached,
        )
        self.event_log.append_round(delta, event)

    def close(self) -> None:
        """Close the ledger."""
        self._store.close()

    def _update_health(
        self,
        request: Request[TrainInstruction],
        reporting: Collection[int],
        refused: Mapping[int, str],
    ) -> list[int]:
        """Count a round's failures by client; return the clients that sent no answer."""
        for client in reporting:
            self._health.record_success(client)
        missing = sorted(request.bytes_down.keys() - set(reporting) - refused.keys())
        absent = [] if len(reporting) >= request.wanted_reports else missing
        for client in [*absent, *refused]:
            if rounds := self._health.record_failure(client, request.instruction.round):
                span = "a round" if rounds == 1 else f"{rounds} rounds"
                log.warning("client %d fails repeatedly and is left out for %s", client, span)
        return absent

    def _revert(self, number: int, token: bytes, back_to: int) -> tuple[RoundDelta, int]:
        """Return a delta that reverts to an earlier round.

        If the ledger no longer has all later rounds, the delta reverts to the first state that the
        ledger has.

        Args:
            number: number of the reverting round.
            token: token of its instruction, 8 bytes; zeros without an instruction.
            back_to: round whose state the delta should restore.

        Returns:
            The delta, and the number of the round whose state the delta restores.
        """
        ledger = self._store.ledger
        reverted = [r.delta for r in read_ledger(ledger.folder) if r.delta.round > back_to]
        delta = revert_delta(number, ledger.header.track, token, reverted)
        ledger.check(delta)
        return delta, reverted[0].round - 1 if reverted else back_to

    def _compact_ledger(self) -> None:
        """Drop the ledger records that every client already has; a failure does not end the run."""
        try:
            self._store.ledger.compact(self._roster.lowest_round())
        except LedgerError as error:
            log.warning("%s", error)

    def _stop_if_nothing_is_learned(self, event: RoundEvent) -> None:
        """Raise `TrainingError` after too many consecutive rounds without a usable report."""
        most = min(self._config.cohort.empty_rounds, self._last_round)
        unused = self.event_log.unused_rounds
        if self._cohorts or unused < most:
            return
        # After a restore, a client with a signed scenario never answers a lost round again.
        restored = RestoredRun.read(self._store.folder)
        if restored and event.round - unused <= restored.round:
            return
        reasons = describe_refusals(event.refused)
        raise TrainingError(
            f"round {event.round}: {most} rounds in a row had no usable report. "
            f"{reasons or event.problem or 'No client answered.'}"
        )

    def _is_validation_round(self, number: int) -> bool:
        every = self._validation_every
        return bool(every) and number % every == 0 and number != self._last_round

    def _record_evaluation(
        self,
        request: Request[EvaluateInstruction],
        messages: Iterable[Message],
        personal: bool = False,
    ) -> None:
        """Validate the replies to an evaluation, and record the figures."""
        instruction = request.instruction
        columns = self._planner.terms.requested_columns(instruction.split, personal)
        replies = self._validator.validate_evaluations(messages, instruction, columns)
        if not replies.answers:
            log.warning(
                "round %d: no client evaluated the model: %s",
                instruction.round,
                describe_refusals(replies.refused),
            )
            return
        self.event_log.record_evaluation(
            EvaluationEvent(
                round=instruction.round,
                split=instruction.split.name.lower(),
                columns=summarize_evaluations(
                    replies.answers, columns, self._config.aggregation.rule != "mean"
                ),
                refused=reasons_by_text(replies.refused),
                bytes_up=sum(replies.bytes_up.values()),
                bytes_down=(sent := sum(request.bytes_down.values())),
                catch_up_bytes=sent - len(request.messages) * len(instruction.encode()),
            )
        )
