"""The strategy: what is asked of a cohort, and what is made of the answers.

Flower's own aggregation averages every number it is sent, seeds included, so nothing of it is
used: a message holds one frame, every frame is validated, and a bad one is dropped alone.
"""

import logging
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from server.live.superlink import most_answer_bytes
from server.rounds.aggregation import aggregate, check_report, observe_round
from server.rounds.evaluation import find_best_round, find_outliers, summarize_evaluations
from server.rounds.event_log import count_unused_rounds, describe
from server.rounds.health import ClientHealth
from server.rounds.late_reports import LateReportFilter, report_token
from server.rounds.recorded_cohorts import RecordedCohorts
from server.rounds.sampling import sample_cohort
from server.store import RunStore
from server.transport.clock import Clock, SystemClock
from server.transport.messages import make_message, read_frame
from server.transport.roster import Roster, RosterEntry, await_clients
from shared.config import RunConfig
from shared.directions import round_root
from shared.errors import LedgerError, ReplayError, ReportError, SamaraError, TrainingError
from shared.frames.evaluation import Evaluation
from shared.frames.instructions import (
    GLOBAL_TRACK,
    EvaluateInstruction,
    SeedPolicy,
    Split,
    TrainInstruction,
    token_of,
)
from shared.frames.refusal import Refusal
from shared.frames.report import Report
from shared.ledger.reading import read_ledger
from shared.round_delta import RoundDelta, revert_delta
from shared.step_record import STEP_SIZE_FILE, StepRecord
from shared.step_size import StepSize
from shared.wire import Kind, kind_of

log = logging.getLogger("samara.server")


Answer = TypeVar("Answer", Report, Evaluation)


class ScalarStrategy(Strategy):
    """Federated zeroth-order training by exact replay of scalars."""

    def __init__(
        self,
        config: RunConfig,
        store: RunStore,
        roster: Roster,
        cohorts: RecordedCohorts | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Prepare for the rounds after the ledger's last.

        Args:
            config: of the run.
            store: its folder.
            roster: its clients.
            cohorts: of a recorded run, to be asked instead of drawn ones.
            clock: what it happens in; the real one by default.
        """
        self._clock: Clock = clock or SystemClock()
        self._config, self._store, self._roster = config, store, roster
        self._health, self._cohorts = ClientHealth(config.cohort.patience), cohorts
        self._late = LateReportFilter(config.cohort.late_rounds)
        self._wanted = 0
        self._run_id = store.ledger.header.run_id
        self._train: TrainInstruction | None = None
        self._evaluation: EvaluateInstruction | None = None
        self._sent: dict[int, int] = {}
        self._told: dict[int, str] = {}
        self._unused = count_unused_rounds(store.events())
        self._begun = time.monotonic()
        given = None if config.learning_rate == "auto" else config.learning_rate
        size = StepSize(config.federated_rounds, given, config.epsilon)
        done = min(store.ledger.position.round, config.federated_rounds)
        self._step_sizes = StepRecord(size, store.folder / STEP_SIZE_FILE, done)

    @property
    def nodes(self) -> Collection[int]:
        """Flower's ids of its clients."""
        return self._roster.entries.keys()

    def summary(self) -> None:
        """Log what the strategy will do."""
        c = self._config
        log.info(
            "%s seeds, %d steps of %d queries on %d examples, epsilon %g, learning rate %s, d = %d",
            c.seed_policy,
            c.steps,
            c.queries,
            c.batch,
            c.epsilon,
            c.learning_rate,
            self._store.layout.size,
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The round's instruction for every client of the cohort, each with what it missed."""
        settings = self._config
        number = self._store.ledger.position.round + 1
        present, chosen = self._chosen(number, grid)
        policy = SeedPolicy[settings.seed_policy.upper()]
        pooled = policy is SeedPolicy.POOL
        size = self._step_sizes.size
        self._train = TrainInstruction(
            run_id=self._run_id,
            round=number,
            track=GLOBAL_TRACK,
            steps=settings.steps,
            queries=settings.queries,
            batch=settings.batch,
            seed_policy=policy,
            root=round_root(settings.seed, number, GLOBAL_TRACK),
            epsilon=settings.epsilon,
            learning_rate=size.learning_rate,
            clip=settings.clip or size.clip,
            deadline=settings.cohort.timeout,
            layout_hash=self._store.layout.hash,
            start_digest=self._store.ledger.digest,
            pool_root=round_root(settings.seed, 0, GLOBAL_TRACK) if pooled else 0,
            pool_size=settings.pool_size if pooled else 0,
            curvature_every=size.curvature_every(settings.queries, settings.differences),
            differences=settings.differences,
        )
        self._late.asked(self._train)
        return self._messages(
            self._train.encode(), MessageType.TRAIN, [present[client] for client in chosen]
        )

    def has_enough(self, replies: Sequence[Message]) -> bool:
        """Whether a round need not wait for more replies."""
        if self._train is None or len(replies) < self._wanted:
            return False
        token = token_of(self._train.encode())
        return 0 < self._wanted <= sum(report_token(reply) == token for reply in replies)

    def _chosen(self, number: int, grid: Grid) -> tuple[dict[int, RosterEntry], list[int]]:
        """Who is there, and which of them are asked in a round, ascending."""
        settings, share = self._config.cohort, self._config.cohort.fraction
        present = await_clients(self._roster, grid, self._config)
        if self._cohorts:
            chosen = self._cohorts.asked(number)
            if missing := [client for client in chosen if client not in present]:
                raise SamaraError(f"the recorded run has clients that this one lacks: {missing}")
            return present, chosen
        trains = [client for client in present if client not in self._config.newcomers]
        awake = [client for client in trains if not self._health.is_resting(client, number)]
        if len(awake) < settings.minimum:
            awake = trains
        run_seed = self._config.seed
        self._wanted = len(sample_cohort(run_seed, number, awake, share, settings.minimum))
        size = max(settings.minimum, math.ceil(round(settings.oversample * self._wanted, 9)))
        return present, sample_cohort(run_seed, number, awake, share, size)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Validate the reports, fold them into a round delta, and put it in the ledger.

        Raises:
            TrainingError: if for too many rounds no report could be used, with the reasons.
            LedgerError: if the delta cannot be written.
        """
        instruction = self._train
        assert instruction is not None, "a round is configured before it is aggregated"
        token = token_of(instruction.encode())
        if self._cohorts:
            replies = self._cohorts.due(instruction.round, self._by_client(replies))
        came_late: list[Message] = []
        in_time: list[Message] = []
        for reply in replies:
            late = self._late.knows(report_token(reply) or token, instruction.round)
            (came_late if late else in_time).append(reply)
        reports, refused, received = self._answers(
            in_time, Report, instruction.encode(), instruction.round - 1
        )
        for report in list(reports.values()):
            try:
                check_report(report, instruction)
            except ReportError as error:
                del reports[report.client]
                refused[report.client] = str(error)
                self._tell_refusal(report.client, str(error))
        late_reports = self._late_reports(came_late, instruction.round, reports, refused, received)
        folded = reports | {report.client: report for _, report in late_reports}
        absent = self._judge(instruction.round, folded.keys(), refused)
        delta, problem = self._delta(instruction, list(reports.values()), late_reports)
        seen = None
        if reports:
            seen = observe_round(
                instruction, list(reports.values()), self._config.cohort.weight_cap
            )
            seen = replace(seen, learning_rate=0.0) if problem else seen
        size = self._step_sizes.note(seen, reports.keys())
        if size.back_to is not None:
            delta, problem = self._return(instruction, size.back_to)
        ledger_bytes = self._store.ledger.append(delta)
        self._late.folded(delta)
        self._compact()
        loss = _mean_loss(folded.values(), self._config.cohort.weight_cap)
        self._tell_round(
            instruction.round,
            loss=loss,
            learning_rate=instruction.learning_rate,
            reports=len(delta.contributors),
            refused={str(client): why for client, why in sorted(refused.items())},
            absent=absent,
            late={str(report.client): asked.round for asked, report in late_reports},
            resting=self._health.resting_clients(instruction.round + 1),
            problem=problem,
            back_to=size.back_to,
            bytes_up=sum(received.values()),
            bytes_down=sum(self._sent.values()),
            ledger_bytes=ledger_bytes,
            clients={
                str(client): {
                    "loss": report.mean_loss,
                    "examples": report.examples,
                    "bytes_up": received[client],
                    "bytes_down": self._sent.get(client, 0),
                }
                for client, report in sorted(folded.items())
            },
            **self._clock.finish_round(),
        )
        used = bool(delta.contributors) or size.back_to is not None
        self._unused = 0 if used else self._unused + 1
        self._end_if_unused(instruction.round, refused, problem)
        return None, MetricRecord({"loss": loss or 0.0, "reports": len(delta.contributors)})

    def _by_client(self, replies: Iterable[Message]) -> list[tuple[int, Message]]:
        entries = self._roster.entries
        return [(entries[reply.metadata.src_node_id].client, reply) for reply in replies]

    def _late_reports(
        self,
        replies: Iterable[Message],
        number: int,
        reports: Mapping[int, Report],
        refused: dict[int, str],
        received: dict[int, int],
    ) -> list[tuple[TrainInstruction, Report]]:
        """The reports of earlier rounds that count in this one, by client; others are refused."""
        accepted: dict[int, tuple[TrainInstruction, Report]] = {}
        for reply in replies:
            entry = self._roster.entries.get(reply.metadata.src_node_id)
            if entry is None:
                log.warning("dropped a late reply of a node that is not known")
                continue
            try:
                frame = self._frame_of(reply, entry)
                received[entry.client] = received.get(entry.client, 0) + len(frame)
                report = Report.decode(frame)
                asked = self._late.accepted(report, entry.client, number)
                if entry.client in reports or entry.client in accepted:
                    raise ReportError(f"it comes late and client {entry.client} has a newer one")
                accepted[entry.client] = asked, report
            except SamaraError as error:
                self._tell_refusal(entry.client, str(error))
                if entry.client not in reports:
                    refused[entry.client] = str(error)
        return [accepted[client] for client in sorted(accepted)]

    def _judge(
        self, number: int, answered: Collection[int], refused: Mapping[int, str]
    ) -> list[int]:
        """Keep count of who fails; returns the clients that were waited for in vain."""
        for client in answered:
            self._health.record_success(client)
        missing = sorted(self._sent.keys() - set(answered) - refused.keys())
        absent = [] if len(answered) >= self._wanted else missing
        for client in [*absent, *refused]:
            if rounds := self._health.record_failure(client, number):
                log.warning("client %d keeps failing and rests for %d rounds", client, rounds)
        return absent

    def _tell_refusal(self, client: int, reason: str) -> None:
        """Log why something of a client is refused, once until it changes."""
        if self._told.get(client) != reason:
            log.warning("client %d: %s", client, reason)
        self._told[client] = reason

    def _end_if_unused(self, number: int, refused: Mapping[int, str], problem: str) -> None:
        """End a run in which nothing is learned any more."""
        most = min(self._config.cohort.empty_rounds, self._config.federated_rounds)
        if self._cohorts or self._unused < most:
            return
        reasons = "; ".join(f"client {d}: {why}" for d, why in sorted(refused.items()))
        raise TrainingError(
            f"round {number}: no report could be used in {most} rounds in a row. "
            f"{reasons or problem or 'Nobody answered.'}"
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Every so many rounds, a validation by everybody who is there."""
        every, number = self._config.evaluate.every, self._store.ledger.position.round
        if not every or number % every or number == self._config.federated_rounds:
            self._evaluation = None
            return []
        return self._evaluation_messages(Split.VALIDATION, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Sum the clients' confusions into the figures of the whole split."""
        instruction = self._evaluation
        if instruction is None:
            return None
        answers, refused, received = self._answers(
            replies, Evaluation, instruction.encode(), instruction.round
        )
        if not answers:
            log.warning("round %d: nobody evaluated: %s", instruction.round, refused)
            return None
        for client in find_outliers(answers):
            del answers[client]
            refused[client] = "it evaluates other labels or columns than most clients do"
            log.warning("client %d: %s", client, refused[client])
        whole = summarize_evaluations(answers)
        event = {
            "event": "evaluation",
            "round": instruction.round,
            "split": instruction.split.name.lower(),
            "columns": whole,
            "refused": {str(client): why for client, why in sorted(refused.items())},
            "bytes_up": sum(received.values()),
            "bytes_down": sum(self._sent.values()),
            "seconds": time.monotonic() - self._begun,
        }
        self._tell(event)
        return MetricRecord(
            {f"{name} accuracy": figures["accuracy"] for name, figures in whole.items()}
        )

    def evaluate(self, grid: Grid, split: Split, action: str = "") -> None:
        """Have everybody who is there evaluate the present state on a split.

        Args:
            grid: Flower's.
            split: which of their examples.
            action: empty for the global model; `PERSONAL_ACTION` for the personal comparison.
        """
        messages = self._evaluation_messages(split, grid, action)
        timeout = self._config.cohort.timeout
        self.aggregate_evaluate(0, grid.send_and_receive(messages, timeout=timeout))

    def _evaluation_messages(self, split: Split, grid: Grid, action: str = "") -> list[Message]:
        self._evaluation = EvaluateInstruction(
            self._run_id,
            self._store.ledger.position.round,
            GLOBAL_TRACK,
            split,
            self._store.layout.hash,
            self._store.ledger.digest,
        )
        present = self._roster.entries_of(grid.get_node_ids())
        kind = f"{MessageType.EVALUATE}.{action}" if action else MessageType.EVALUATE
        return self._messages(self._evaluation.encode(), kind, present.values())

    def _messages(
        self, frame: bytes, message_type: str, entries: Iterable[RosterEntry]
    ) -> list[Message]:
        """One message per client; what it costs is counted where it is made."""
        messages, last = [], self._store.ledger.position.round
        late_too = 1 + self._config.cohort.late_rounds
        seconds = self._config.cohort.timeout * late_too
        self._sent = {}
        catch_up_from = cache(self._store.ledger.catch_up)
        for entry in entries:
            catch_up = catch_up_from(min(entry.round, last))
            self._sent[entry.client] = len(frame) + len(catch_up)
            messages.append(
                make_message(entry.node, message_type, str(last + 1), frame, catch_up, seconds)
            )
        return messages

    def _answers(
        self, replies: Iterable[Message], kind: type[Answer], instruction: bytes, position: int
    ) -> tuple[dict[int, Answer], dict[int, str], dict[int, int]]:
        """The sound answers, the reasons of the others, and the bytes received, by client.

        A client that answers stands at `position` from now on; one that refuses says where.
        """
        answers: dict[int, Answer] = {}
        refused: dict[int, str] = {}
        received: dict[int, int] = {}
        for reply in replies:
            entry = self._roster.entries.get(reply.metadata.src_node_id)
            if entry is None:
                log.warning("dropped a reply of a node that nobody asked")
                continue
            try:
                frame = self._frame_of(reply, entry)
                received[entry.client] = received.get(entry.client, 0) + len(frame)
                if kind_of(frame) is Kind.REFUSAL:
                    refusal = Refusal.decode(frame)
                    entry.round = refusal.round
                    raise ReportError(refusal.description)
                answer = kind.decode(frame)
                if answer.client != entry.client:
                    raise ReportError(f"it answers as client {answer.client}")
                if answer.token != token_of(instruction):
                    raise ReportError("it answers another instruction than it was sent")
                if entry.client in answers:
                    raise ReportError("it answers twice")
                answers[entry.client], entry.round = answer, position
            except SamaraError as error:
                refused[entry.client] = str(error)
                self._tell_refusal(entry.client, str(error))
        return answers, refused, received

    def _frame_of(self, reply: Message, entry: RosterEntry) -> bytes:
        """The frame in an entry's reply, if it may still send any and it is no flood."""
        if reason := self._roster.refusal_reason(entry):
            raise ReportError(reason)
        frame = read_frame(reply)
        most = most_answer_bytes(self._config)
        if len(frame) > most:
            raise ReportError(f"its answer of {len(frame)} bytes is longer than {most}")
        return frame

    def _delta(
        self,
        instruction: TrainInstruction,
        reports: list[Report],
        late: Sequence[tuple[TrainInstruction, Report]],
    ) -> tuple[RoundDelta, str]:
        """The round's delta, or an empty one and why: a round always leaves a record."""
        settings = self._config.cohort
        nothing = aggregate(instruction, [], settings.weight_cap)
        if (count := len(reports) + len(late)) < settings.minimum:
            return nothing, f"{count} reports, fewer than cohort.minimum"
        try:
            delta = aggregate(instruction, reports, settings.weight_cap, late)
            self._store.ledger.check(delta)
        except ReplayError as error:
            log.warning("round %d changes nothing: %s", instruction.round, error)
            return nothing, str(error)
        return delta, ""

    def _return(self, instruction: TrainInstruction, back_to: int) -> tuple[RoundDelta, str]:
        """The round that takes back all after an earlier one, and what is said of it."""
        delta, stands = self._undoing(instruction.round, token_of(instruction.encode()), back_to)
        return delta, f"the loss rose: back to the state after round {stands}"

    def return_to_best(self) -> None:
        """After the last round: one that takes back what came after the best on validation.

        Of a ledger whose early rounds were compacted away, the best that can still be reached.

        Raises:
            LedgerError: if the round that does so cannot be written.
        """
        ledger, last = self._store.ledger, self._config.federated_rounds
        if not self._config.evaluate.best or ledger.position.round != last:
            return
        oldest = next(read_ledger(ledger.folder)).delta.round - 1
        reachable = [event for event in self._store.events() if event["round"] >= oldest]
        best = find_best_round(reachable, self._config.newcomers)
        delta, stands = self._undoing(last + 1, bytes(8), last if best is None else min(best, last))
        ledger_bytes = ledger.append(delta)
        problem = f"round {stands} was best on validation: the model is what it was then"
        self._tell_round(last + 1, problem=problem, back_to=stands, ledger_bytes=ledger_bytes)

    def _undoing(self, number: int, token: bytes, back_to: int) -> tuple[RoundDelta, int]:
        """A round that takes back all after an earlier one, or as far as the ledger goes.

        Returns:
            Its delta, and the round whose state it leads to.
        """
        ledger = self._store.ledger
        undone = [r.delta for r in read_ledger(ledger.folder) if r.delta.round > back_to]
        delta = revert_delta(number, ledger.header.track, token, undone)
        ledger.check(delta)
        return delta, undone[0].round - 1 if undone else back_to

    def _tell_round(self, number: int, **told: Any) -> None:
        """Tell of a round; what is not said of it is nothing."""
        nothing = {
            "event": "round",
            "round": number,
            "loss": None,
            "learning_rate": 0.0,
            "reports": 0,
            "refused": {},
            "absent": [],
            "late": {},
            "resting": [],
            "problem": "",
            "back_to": None,
            "bytes_up": 0,
            "bytes_down": 0,
            "digest": self._store.ledger.digest.hex(),
            "seconds": time.monotonic() - self._begun,
            "clients": {},
        }
        self._tell(nothing | told)

    def _compact(self) -> None:
        """Drop what nobody needs; that it cannot be dropped is no reason to end the run."""
        try:
            self._store.ledger.compact(self._roster.lowest_round())
        except LedgerError as error:
            log.warning("%s", error)

    def _tell(self, event: dict[str, Any]) -> None:
        event["time"] = datetime.now(UTC).isoformat(timespec="seconds")
        self._store.note(event)
        log.info(describe(event), extra={"event": event})


def _mean_loss(reports: Collection[Report], weight_cap: int) -> float | None:
    """Over the clients of a round by their weights; None without any."""
    weights = [min(report.examples, weight_cap) for report in reports]
    losses = [report.mean_loss for report in reports]
    if not weights:
        return None
    return sum(loss * w for loss, w in zip(losses, weights, strict=True)) / sum(weights)
