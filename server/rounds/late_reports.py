"""Reports on earlier rounds' instructions: which instructions are remembered, which count."""

from flwr.app import Message

from samara.server.rounds.aggregation import check_report
from samara.server.rounds.recorded_cohorts import origin_rounds
from samara.server.transport.messages import read_frame
from samara.shared.errors import ReportError, SamaraError
from samara.shared.frames.instructions import TrainInstruction, token_of
from samara.shared.frames.report import Report
from samara.shared.round_delta import RoundDelta
from samara.shared.wire import Kind, kind_of

_REMEMBERED_ROUNDS = 16
_REPORTS = (
    Kind.REPORT,
    Kind.REPORT_OF_SUMS,
    Kind.VECTOR_REPORT,
    Kind.NOISED_VECTOR_REPORT,
    Kind.MASKED_REPORT,
)
_TOKEN = slice(8, 16)


def report_token(reply: Message) -> bytes | None:
    """Return the token of the instruction that a reply's report names; None if it has no report."""
    try:
        frame = read_frame(reply)
        return frame[_TOKEN] if kind_of(frame) in _REPORTS else None
    except SamaraError:
        return None


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
        self._folded |= set(origin_rounds(delta).items())
