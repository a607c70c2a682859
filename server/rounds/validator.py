"""The reply validator: which replies hold a sound answer, and why the others are refused."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from flwr.app import Message

from samara.server.live.superlink import max_reply_bytes
from samara.server.rounds.aggregation import check_report, check_vector_report
from samara.server.rounds.evaluation import check_evaluation, find_outliers, keep_requested
from samara.server.rounds.event_log import EventLog
from samara.server.rounds.late_reports import LateReportFilter, report_token
from samara.server.transport.messages import (
    LOST,
    cut_foreign_text,
    decode_foreign,
    read_cost,
    read_frame,
)
from samara.server.transport.roster import Roster, RosterEntry
from samara.shared.config import RunConfig
from samara.shared.errors import RefusalCode, ReportError, SamaraError
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
from samara.shared.privacy.mechanism import Mechanism
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


class ReplyValidator:
    """Reads the frames in replies and sorts out what cannot be used.

    Every frame is untrusted. A bad one is dropped alone and its client refused for the round. Of
    a client's several answers to one instruction the first sound one counts; the others are
    dropped and not held against the client.

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
