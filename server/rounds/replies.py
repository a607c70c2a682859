"""The replies of clients: which hold a sound answer, and the round that the answers make.

Every frame is untrusted. A reply that cannot be used is dropped alone, with the reason.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from samara.server.live.superlink import max_reply_bytes
from samara.server.rounds.aggregation import (
    TOO_LARGE,
    AggregatedRound,
    RoundAggregator,
    check_report,
    check_vector_report,
)
from samara.server.rounds.evaluation import check_evaluation, find_outliers, keep_requested
from samara.server.rounds.event_log import EventLog, client_fields
from samara.server.rounds.planner import Request
from samara.server.store import RunStore
from samara.server.transport.messages import (
    LOST,
    cut_foreign_text,
    decode_foreign,
    read_cost,
    read_frame,
    report_token,
)
from samara.server.transport.roster import Roster, RosterEntry
from samara.shared.config import RunConfig
from samara.shared.errors import RefusalCode, ReportError, SamaraError, TrainingError
from samara.shared.frames.evaluation import Evaluation
from samara.shared.frames.instructions import EvaluateInstruction, TrainInstruction, token_of
from samara.shared.frames.masking import (
    MaskingKeys,
    RevealedShares,
    SealedShares,
    SurvivorSignature,
)
from samara.shared.frames.refusal import Refusal
from samara.shared.frames.report import Report
from samara.shared.frames.round_cost import RoundCost
from samara.shared.frames.vector_report import MaskedReport, NoisedVectorReport, VectorReport
from samara.shared.layout import Layout
from samara.shared.privacy.mechanism import Mechanism
from samara.shared.round_delta import RoundDelta
from samara.shared.signing import normalize_public_key
from samara.shared.wire import Kind, kind_of

log = logging.getLogger("samara.server")

Answer = TypeVar(
    "Answer",
    Report,
    VectorReport,
    NoisedVectorReport,
    Evaluation,
    MaskingKeys,
    SealedShares,
    MaskedReport,
    SurvivorSignature,
    RevealedShares,
)
_REMEMBERED_ROUNDS = 16


@dataclass
class ValidatedReplies(Generic[Answer]):
    """The replies to an instruction, by client.

    Attributes:
        answers: sound answers, at most one per client.
        late: sound reports on earlier rounds' instructions, at most one per client and none of a
            client with an answer; each with the instruction that it answers.
        refused: by client without a sound answer, the reason why its reply cannot be used.
        bytes_up: by client, the bytes of all its frames.
        costs: by client with a report, what it has cost its device, if the owner shares that.
    """

    answers: dict[int, Answer] = field(default_factory=dict)
    late: dict[int, tuple[TrainInstruction, Report]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    bytes_up: dict[int, int] = field(default_factory=dict)
    costs: dict[int, RoundCost] = field(default_factory=dict)

    def all_reports(self: "ValidatedReplies[Report]") -> dict[int, Report]:
        """Return the reports that count in the round by client, late ones included."""
        return self.answers | {client: self.late[client][1] for client in sorted(self.late)}


class LateReportFilter:
    """Remembers the instructions of the last rounds, and which reports on them were folded.

    It starts empty in every process: a report that is late across a restart answers an unknown
    instruction and is refused. So no report is folded twice.

    Args:
        most_rounds: rounds by which a report may be late; 0 refuses every late one.
    """

    def __init__(self, most_rounds: int) -> None:
        self._most = most_rounds
        self._instructions: dict[bytes, TrainInstruction] = {}
        self._folded: set[tuple[int, int]] = set()

    def add_instruction(self, instruction: TrainInstruction) -> None:
        """Remember the instruction of a new round, and forget those of old ones."""
        self._instructions[token_of(instruction.encode())] = instruction
        oldest = instruction.round - max(_REMEMBERED_ROUNDS, self._most)
        self._instructions = {t: i for t, i in self._instructions.items() if i.round >= oldest}
        self._folded = {(client, number) for client, number in self._folded if number >= oldest}

    def is_late(self, token: bytes, number: int) -> bool:
        """Return whether a token is that of a remembered round before this one."""
        instruction = self._instructions.get(token)
        return instruction is not None and instruction.round < number

    def accept(self, report: Report, client: int, number: int) -> TrainInstruction:
        """Return the instruction that a late report answers, if the report may count.

        Args:
            report: the report; its token is that of a remembered round.
            client: index of the client that sent it.
            number: number of the present round.

        Raises:
            ReportError: if it may not count.
        """
        instruction = self._instructions[report.token]
        if report.client != client:
            raise ReportError(f"it answers as client {report.client}")
        if (client, instruction.round) in self._folded:
            raise ReportError(f"its report of round {instruction.round} is in the ledger already")
        if number - instruction.round > self._most:
            raise ReportError(
                f"its report of round {instruction.round} comes {number - instruction.round} "
                f"rounds late; cohort.late-rounds allows {self._most}"
            )
        check_report(report, instruction)
        return instruction

    def forget(self) -> None:
        """Forget all instructions: no report on an earlier round counts any more."""
        self._instructions.clear()

    def mark_folded(self, delta: RoundDelta) -> None:
        """Remember which clients' reports of which rounds are in a delta."""
        self._folded |= set(delta.origins.items())


class ReplyValidator:
    """Reads the frames in replies and sorts out what cannot be used.

    A client whose frame is bad is refused for the round. Of a client's several answers to one
    instruction the first sound one counts; the others are dropped and not held against the client.

    Args:
        config: settings of the run.
        roster: clients of the run; whoever answers has its `round` updated.
        late_reports: instructions of earlier rounds.
        events: log that refusals are written to.
    """

    def __init__(
        self, config: RunConfig, roster: Roster, late_reports: LateReportFilter, events: EventLog
    ) -> None:
        self._roster, self._late_reports, self._events = roster, late_reports, events
        self._most_bytes = max_reply_bytes(config)

    def validate_reports(
        self, replies: Iterable[Message], instruction: TrainInstruction
    ) -> ValidatedReplies[Report]:
        """Return the reports on a round's instruction, and the late ones that may count in it."""
        token, number = token_of(instruction.encode()), instruction.round
        in_time: list[Message] = []
        late: list[Message] = []
        for reply in replies:
            is_late = self._late_reports.is_late(report_token(reply) or token, number)
            (late if is_late else in_time).append(reply)
        result = ValidatedReplies[Report]()
        check = partial(check_report, instruction=instruction)
        for reply in in_time:
            self._add_answer(result, reply, Report, token, number - 1, check)
        for reply in late:
            self._add_late_report(result, reply, number)
        return result

    def validate_vectors(
        self, replies: Iterable[Message], instruction: TrainInstruction, mechanism: Mechanism
    ) -> ValidatedReplies[VectorReport] | ValidatedReplies[NoisedVectorReport]:
        """Return the vector reports on a round's instruction; late ones are refused.

        Args:
            replies: replies to the instruction.
            instruction: instruction of the round.
            mechanism: who adds noise, which decides the kind of the reports.
        """
        token, number = token_of(instruction.encode()), instruction.round
        check = partial(check_vector_report, instruction=instruction, mechanism=mechanism)
        if mechanism.client_sigma:
            noised = ValidatedReplies[NoisedVectorReport]()
            for reply in replies:
                self._add_answer(noised, reply, NoisedVectorReport, token, number - 1, check)
            return noised
        result = ValidatedReplies[VectorReport]()
        for reply in replies:
            self._add_answer(result, reply, VectorReport, token, number - 1, check)
        return result

    def validate_masking(
        self,
        replies: Iterable[Message],
        kind: type[Answer],
        token: bytes,
        check: Callable[[Answer], None],
        round_number: int | None = None,
    ) -> ValidatedReplies[Answer]:
        """Return the answers to messages of secure aggregation.

        Args:
            replies: replies to them.
            kind: type of the expected frame.
            token: token of the round's instruction.
            check: raises an error for an answer that cannot be used.
            round_number: round that a client which answers has reached; None if that is not said.
        """
        result = ValidatedReplies[Answer]()
        for reply in replies:
            self._add_answer(result, reply, kind, token, round_number, check)
        return result

    def check_device(self, node: int, public_key: bytes) -> None:
        """Raise an error if a client that is known by a key names another one as its own.

        Args:
            node: Flower's id of the client's node.
            public_key: key that it names, PEM.

        Raises:
            SamaraError: if it does, or names none.
        """
        named, known = normalize_public_key(public_key), self._roster.entries[node].public_key
        if known and normalize_public_key(known) != named:
            raise ReportError("it signs with another key than its device's")

    def validate_evaluations(
        self,
        replies: Iterable[Message],
        instruction: EvaluateInstruction,
        requested: Sequence[str],
    ) -> ValidatedReplies[Evaluation]:
        """Return the evaluations that answer an instruction and agree on the number of labels.

        Args:
            replies: replies to the instruction.
            instruction: evaluate instruction.
            requested: names of the columns that it asks for; others are left out.
        """
        token = token_of(instruction.encode())
        result = ValidatedReplies[Evaluation]()
        entries = self._roster.entries.values()
        most = {entry.client: entry.most_predictions(instruction.split) for entry in entries}

        def check(evaluation: Evaluation) -> None:
            kept = keep_requested(evaluation, requested)
            check_evaluation(kept, most[evaluation.client])

        for reply in replies:
            self._add_answer(result, reply, Evaluation, token, instruction.round, check)
        for client, evaluation in result.answers.items():
            result.answers[client] = keep_requested(evaluation, requested)
        outliers = find_outliers(result.answers) if result.answers else []
        for client in outliers:
            del result.answers[client]
            reason = "it evaluates other labels than most clients do"
            self._refuse(result, client, reason)
        return result

    def leave_out(
        self, result: ValidatedReplies[Report], clients: Iterable[int], reason: str
    ) -> None:
        """Refuse clients whose sound reports cannot be used after all.

        Args:
            result: replies that hold the reports.
            clients: the clients.
            reason: why.
        """
        for client in clients:
            result.answers.pop(client, None)
            result.late.pop(client, None)
            self._refuse(result, client, reason)

    def _add_answer(
        self,
        result: ValidatedReplies[Answer],
        reply: Message,
        kind: type[Answer],
        token: bytes,
        round_number: int | None,
        check: Callable[[Answer], None] = lambda answer: None,
    ) -> None:
        """Add a reply to the result, as an answer or as a refusal.

        Args:
            result: replies so far.
            reply: reply to the instruction.
            kind: type of the expected frame.
            token: token of the instruction.
            round_number: round that a client which answers has reached; None if neither an answer
                nor a refusal says so.
            check: raises `ReportError` for an answer that cannot be used.
        """
        entry = self._entry_of(reply)
        if entry is None:
            return
        client = entry.client
        try:
            frame = self._receive_frame(result, reply, entry)
            if client in result.answers:
                raise ReportError("it answers twice; its first answer counts")
            if kind_of(frame) is Kind.REFUSAL:
                refusal = decode_foreign(Refusal.decode, frame)
                entry.round = entry.round if round_number is None else refusal.round
                if refusal.code == RefusalCode.CATCH_UP:
                    entry.follows = False
                if refusal.code == RefusalCode.MISSING_BLOB:
                    self._roster.begin_transfer(entry, refusal)
                raise ReportError(refusal.description)
            answer = decode_foreign(kind.decode, frame)
            if answer.client != client:
                raise ReportError(f"it answers as client {answer.client}")
            if answer.token != token:
                raise ReportError("it answers another instruction than it was sent")
            entry.round = entry.round if round_number is None else round_number
            entry.follows = True
            check(answer)
        except SamaraError as error:
            if client in result.answers:
                log.warning("client %d: a further answer is dropped: %s", client, error)
            else:
                self._refuse(result, client, str(error))
            return
        result.answers[client] = answer
        result.refused.pop(client, None)
        self._add_cost(result, reply, client, token)

    def _add_late_report(
        self, result: ValidatedReplies[Report], reply: Message, number: int
    ) -> None:
        """Add a reply to an earlier round's instruction to the result, or refuse it."""
        entry = self._entry_of(reply)
        if entry is None:
            return
        client = entry.client
        try:
            report = decode_foreign(Report.decode, self._receive_frame(result, reply, entry))
            instruction = self._late_reports.accept(report, client, number)
        except SamaraError as error:
            if client not in result.answers and client not in result.late:
                self._refuse(result, client, str(error))
            else:
                self._events.log_refusal(client, str(error))
            return
        if client in result.answers or client in result.late:
            log.warning("client %d: its late report is dropped; it sent another one", client)
            return
        result.late[client] = instruction, report
        self._add_cost(result, reply, client, report.token)

    def _add_cost(
        self, result: ValidatedReplies[Answer], reply: Message, client: int, token: bytes
    ) -> None:
        """Add what an answer has cost its client; an unsound cost is left out, and the answer not.

        Args:
            result: replies so far.
            reply: reply with the answer.
            client: client index.
            token: token of the instruction that it answers.
        """
        if not (frame := read_cost(reply)):
            return
        try:
            cost = decode_foreign(RoundCost.decode, frame)
            if (cost.client, cost.token) != (client, token):
                raise ReportError("the cost beside its answer is of another one")
        except SamaraError as error:
            self._events.log_refusal(client, str(error))
            return
        result.costs[client] = cost

    def _entry_of(self, reply: Message) -> RosterEntry | None:
        if reply.has_error() and reply.error.code in LOST:
            return None  # the client did not answer, so that it counts as absent
        entry = self._roster.entries.get(reply.metadata.src_node_id)
        if entry is None:
            log.warning("dropped a reply of a node that is no client of this run")
        return entry

    def _receive_frame(
        self, result: ValidatedReplies[Answer], reply: Message, entry: RosterEntry
    ) -> bytes:
        """Return the frame in a client's reply and count its bytes.

        Raises:
            SamaraError: if the client may not take part any more, or the reply holds no frame or
                one that is too long.
        """
        if reason := self._roster.refusal_reason(entry):
            raise ReportError(reason)
        frame = read_frame(reply)
        if len(frame) > self._most_bytes:
            raise ReportError(f"its answer of {len(frame)} bytes is longer than {self._most_bytes}")
        result.bytes_up[entry.client] = result.bytes_up.get(entry.client, 0) + len(frame)
        return frame

    def _refuse(self, result: ValidatedReplies[Answer], client: int, reason: str) -> None:
        reason = cut_foreign_text(reason)
        result.refused[client] = reason
        self._events.log_refusal(client, reason)


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
    """The answers to the instructions of rounds, and what they make of each round.

    Runs with differential privacy have subclasses of it.

    Args:
        config: settings of the run.
        store: folder of the run.
        validator: validator of the replies.
    """

    def __init__(self, config: RunConfig, store: RunStore, validator: ReplyValidator) -> None:
        self._validator = validator
        self._aggregator = RoundAggregator(config, store)

    def joint_clip(self, number: int) -> float:
        """Return the clip that a round's instruction has; 0 without an adaptive one."""
        return 0.0

    def check_budget(self, instruction: TrainInstruction) -> None:
        """Raise an error if a round would spend more privacy than the run may.

        Raises:
            TrainingError: if it would.
        """

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

    def prepare(self, request: Request[TrainInstruction], grid: Grid) -> Request[TrainInstruction]:
        """Return a round's request after what comes before it: with secure aggregation, masks.

        Args:
            request: instruction of the round, and the messages to its cohort.
            grid: the grid that sends messages.

        Raises:
            LedgerError: if the run's folder cannot be written.
        """
        return request

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
