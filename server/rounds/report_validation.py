"""Validation of clients' replies: reports, evaluations and answers of secure aggregation.

Every frame is untrusted. An unusable reply is dropped with a reason; the other replies are kept.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from flwr.app import Message

from samara.server.live.superlink import max_reply_bytes
from samara.server.rounds.aggregation import (
    check_report,
    check_vector_report,
)
from samara.server.rounds.common_intercept import check_excesses
from samara.server.rounds.evaluation import check_evaluation, find_outliers, keep_requested
from samara.server.rounds.event_log import EventLog
from samara.server.transport.messages import (
    LOST,
    cut_foreign_text,
    decode_foreign,
    read_cost,
    read_frame,
    report_token,
)
from samara.server.transport.roster import Roster, RosterEntry
from samara.shared.errors import RefusalCode, ReportError, SamaraError
from samara.shared.privacy.mechanism import Mechanism
from samara.shared.protocol.frames.evaluation import Evaluation
from samara.shared.protocol.frames.instructions import (
    INTERCEPT_TRACK,
    EvaluateInstruction,
    TrainInstruction,
    token_of,
)
from samara.shared.protocol.frames.masking import (
    MaskingKeys,
    RevealedShares,
    SealedShares,
    SurvivorSignature,
)
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.frames.round_cost import RoundCost
from samara.shared.protocol.frames.vector_report import (
    MaskedReport,
    NoisedVectorReport,
    VectorReport,
)
from samara.shared.protocol.round_delta import RoundDelta
from samara.shared.protocol.signing import normalize_public_key
from samara.shared.protocol.wire import Kind, kind_of
from samara.shared.settings.config import RunConfig

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
        answers: valid answers, at most one per client.
        late: valid reports for earlier instructions, each with its instruction; at most one per
            client, and only of clients without an entry in `answers`.
        refused: reason for the refusal, by client, if all replies of the client are unusable.
        bytes_up: bytes of all frames, by client.
        costs: round cost of each client whose owner shares the round cost.
    """

    answers: dict[int, Answer] = field(default_factory=dict)
    late: dict[int, tuple[TrainInstruction, Report]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    bytes_up: dict[int, int] = field(default_factory=dict)
    costs: dict[int, RoundCost] = field(default_factory=dict)

    def all_reports(self: "ValidatedReplies[Report]") -> dict[int, Report]:
        """Return the reports that the round uses, by client; late reports come last."""
        return self.answers | {client: self.late[client][1] for client in sorted(self.late)}


class LateReportFilter:
    """Decides which late reports a round may use, from recent instructions and used reports.

    A new server process remembers no instructions. It therefore refuses reports for instructions of
    an earlier process. No report is used twice.

    Args:
        most_rounds: largest number of rounds by which a report may be late; 0 refuses all late
            reports.
    """

    def __init__(self, most_rounds: int) -> None:
        self._most = most_rounds
        self._instructions: dict[bytes, TrainInstruction] = {}
        self._folded: set[tuple[int, int]] = set()

    def add_instruction(self, instruction: TrainInstruction) -> None:
        """Add the instruction of a new round, and remove old instructions."""
        self._instructions[token_of(instruction.encode())] = instruction
        oldest = instruction.round - max(_REMEMBERED_ROUNDS, self._most)
        self._instructions = {t: i for t, i in self._instructions.items() if i.round >= oldest}
        self._folded = {(client, number) for client, number in self._folded if number >= oldest}

    def is_late(self, token: bytes, number: int) -> bool:
        """Return whether a token belongs to a remembered earlier round."""
        instruction = self._instructions.get(token)
        return instruction is not None and instruction.round < number

    def accept(self, report: Report, client: int, number: int) -> TrainInstruction:
        """Return the instruction that a late report answers.

        Args:
            report: report whose token belongs to a remembered round.
            client: index of the client that sent the report.
            number: number of the current round.

        Raises:
            ReportError: if the report may not be used.
        """
        instruction = self._instructions[report.token]
        if report.client != client:
            raise ReportError(f"its report names client {report.client}")
        if (client, instruction.round) in self._folded:
            raise ReportError(f"its report of round {instruction.round} is already in the ledger")
        if number - instruction.round > self._most:
            raise ReportError(
                f"its report of round {instruction.round} comes {number - instruction.round} "
                f"rounds late; cohort.late-rounds allows {self._most}"
            )
        check_report(report, instruction)
        return instruction

    def forget(self) -> None:
        """Forget all instructions, so that no earlier report can be used."""
        self._instructions.clear()

    def mark_folded(self, delta: RoundDelta) -> None:
        """Record the client and the round of each report that a delta contains."""
        self._folded |= set(delta.origins.items())


class ReplyValidator:
    """A validator that reads the frames in replies and refuses unusable frames.

    A client without a valid frame is refused for the round. If a client answers an instruction
    several times, its first valid answer is used. The other answers are dropped, but the client is
    not refused.

    Args:
        config: settings of the run.
        roster: clients of the run; an answer updates its client's `round`.
        late_reports: instructions of earlier rounds.
        events: log for refusals.
    """

    def __init__(
        self, config: RunConfig, roster: Roster, late_reports: LateReportFilter, events: EventLog
    ) -> None:
        self._roster, self._late_reports, self._events = roster, late_reports, events
        self._most_bytes = max_reply_bytes(config)
        self._excesses = config.terms.held_out_losses

    def validate_reports(
        self, replies: Iterable[Message], instruction: TrainInstruction
    ) -> ValidatedReplies[Report]:
        """Return reports for a round's instruction, and the late reports that the round uses."""
        token = token_of(instruction.encode())
        number = instruction.round
        in_time: list[Message] = []
        late: list[Message] = []
        for reply in replies:
            is_late = self._late_reports.is_late(report_token(reply) or token, number)
            (late if is_late else in_time).append(reply)
        result = ValidatedReplies[Report]()

        def check(report: Report) -> None:
            check_report(report, instruction)
            if instruction.track == INTERCEPT_TRACK:
                check_excesses(report, self._excesses)

        for reply in in_time:
            self._add_answer(result, reply, Report, token, number - 1, check)
        for reply in late:
            self._add_late_report(result, reply, number)
        return result

    def validate_vectors(
        self, replies: Iterable[Message], instruction: TrainInstruction, mechanism: Mechanism
    ) -> ValidatedReplies[VectorReport] | ValidatedReplies[NoisedVectorReport]:
        """Return the vector reports for a round's instruction; late reports are refused.

        Args:
            replies: replies to the instruction.
            instruction: instruction of the round.
            mechanism: the run's noise mechanism, which decides the kind of the reports.
        """
        token = token_of(instruction.encode())
        number = instruction.round
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
            replies: replies to the messages.
            kind: type of the expected frame.
            token: token of the round's instruction.
            check: function that raises a `SamaraError` for an unusable answer.
            round_number: round of the state that a client needs for its answer; None if a client
                can answer with any state.
        """
        result = ValidatedReplies[Answer]()
        for reply in replies:
            self._add_answer(result, reply, kind, token, round_number, check)
        return result

    def check_device(self, node: int, public_key: bytes) -> None:
        """Check that the key in a client's frame is the registered key of the client.

        Args:
            node: Flower's id of the client's node.
            public_key: key in the client's frame, PEM.

        Raises:
            SamaraError: if the frame has another key or no key.
        """
        named = normalize_public_key(public_key)
        known = self._roster.entries[node].public_key
        if known and normalize_public_key(known) != named:
            raise ReportError("it signs with a key that is not its device's key")

    def validate_evaluations(
        self,
        replies: Iterable[Message],
        instruction: EvaluateInstruction,
        requested: Sequence[str],
    ) -> ValidatedReplies[Evaluation]:
        """Return the valid evaluations; all have the same number of labels.

        Args:
            replies: replies to the instruction.
            instruction: evaluate instruction.
            requested: names of the requested columns; other columns are removed.
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
            reason = "its number of labels differs from that of most clients"
            self._refuse(result, client, reason)
        return result

    def leave_out(
        self, result: ValidatedReplies[Report], clients: Iterable[int], reason: str
    ) -> None:
        """Refuse clients whose valid reports cannot be used after all.

        Args:
            result: replies that hold the reports.
            clients: clients to refuse.
            reason: reason for the refusal.
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
            round_number: round of the state that a client needs for its answer; None if an answer
                or refusal does not show the client's round.
            check: function that raises a `SamaraError` for an unusable answer.
        """
        entry = self._entry_of(reply)
        if entry is None:
            return
        client = entry.client
        try:
            frame = self._receive_frame(result, reply, entry)
            if client in result.answers:
                raise ReportError("it answers twice; its first answer is used")
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
                raise ReportError(f"its answer names client {answer.client}")
            if answer.token != token:
                raise ReportError("it answers an instruction that was not sent to it")
            entry.round = entry.round if round_number is None else round_number
            entry.follows = True
            check(answer)
        except SamaraError as error:
            if client in result.answers:
                log.warning("client %d: another answer is dropped: %s", client, error)
            else:
                self._refuse(result, client, str(error))
            return
        result.answers[client] = answer
        result.refused.pop(client, None)
        self._add_cost(result, reply, client, token)

    def _add_late_report(
        self, result: ValidatedReplies[Report], reply: Message, number: int
    ) -> None:
        """Add a late report, which answers an earlier round's instruction, or refuse it."""
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
            log.warning(
                "client %d: its late report is dropped, because it sent another report", client
            )
            return
        result.late[client] = instruction, report
        self._add_cost(result, reply, client, report.token)

    def _add_cost(
        self, result: ValidatedReplies[Answer], reply: Message, client: int, token: bytes
    ) -> None:
        """Add the round cost that accompanies an answer to the result.

        An invalid round cost is logged and left out; the answer is still used.

        Args:
            result: replies so far.
            reply: reply with the answer.
            client: client index.
            token: token of the instruction that the reply answers.
        """
        if not (frame := read_cost(reply)):
            return
        try:
            cost = decode_foreign(RoundCost.decode, frame)
            if (cost.client, cost.token) != (client, token):
                raise ReportError("the round cost beside its answer belongs to another answer")
        except SamaraError as error:
            self._events.log_refusal(client, str(error))
            return
        result.costs[client] = cost

    def _entry_of(self, reply: Message) -> RosterEntry | None:
        if reply.has_error() and reply.error.code in LOST:
            return None  # a client without an answer counts as absent
        entry = self._roster.entries.get(reply.metadata.src_node_id)
        if entry is None:
            log.warning("dropped a reply from a node that is not a client of this run")
        return entry

    def _receive_frame(
        self, result: ValidatedReplies[Answer], reply: Message, entry: RosterEntry
    ) -> bytes:
        """Return the frame in a client's reply and count its bytes.

        Raises:
            SamaraError: if the client may no longer take part, the reply holds no frame, or the
                frame is too long.
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
