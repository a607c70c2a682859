"""Reports that come after their round: which are known, and which may still count."""

from flwr.app import Message

from server.rounds.aggregation import check_report
from server.rounds.recorded_cohorts import origins
from server.transport.messages import read_frame
from shared.errors import ReportError, SamaraError
from shared.frames.instructions import TrainInstruction, token_of
from shared.frames.report import Report
from shared.round_delta import RoundDelta
from shared.wire import Kind, kind_of

_REMEMBERED_ROUNDS = 16
_REPORTS = (Kind.REPORT, Kind.REPORT_OF_SUMS)
_TOKEN = slice(8, 16)


def report_token(reply: Message) -> bytes | None:
    """The token of the instruction that a reply's report says it answers; None of no report."""
    try:
        frame = read_frame(reply)
        return frame[_TOKEN] if kind_of(frame) in _REPORTS else None
    except SamaraError:
        return None


class LateReportFilter:
    """Remembers the instructions of the last rounds, and what was folded of each.

    Nothing is remembered across restarts: what comes late then answers an instruction that nobody
    knows, and is refused. So no report is folded twice.

    Args:
        most_rounds: by which a report may be late; 0 refuses every late one.
    """

    def __init__(self, most_rounds: int) -> None:
        self._most = most_rounds
        self._instructions: dict[bytes, TrainInstruction] = {}
        self._folded: set[tuple[int, int]] = set()

    def asked(self, instruction: TrainInstruction) -> None:
        """Remember the instruction of a new round, and forget old ones."""
        self._instructions[token_of(instruction.encode())] = instruction
        oldest = instruction.round - max(_REMEMBERED_ROUNDS, self._most)
        self._instructions = {t: i for t, i in self._instructions.items() if i.round >= oldest}
        self._folded = {(client, number) for client, number in self._folded if number >= oldest}

    def knows(self, token: bytes, number: int) -> bool:
        """Whether a token is that of a remembered round before this one."""
        asked = self._instructions.get(token)
        return asked is not None and asked.round < number

    def accepted(self, report: Report, client: int, number: int) -> TrainInstruction:
        """The instruction of a late report that may count in a round.

        Args:
            report: its token is known.
            client: that sent it.
            number: of the present round.

        Raises:
            ReportError: if it may not.
        """
        asked = self._instructions[report.token]
        if report.client != client:
            raise ReportError(f"it answers as client {report.client}")
        if (client, asked.round) in self._folded:
            raise ReportError(f"its report of round {asked.round} is in the ledger already")
        if number - asked.round > self._most:
            raise ReportError(
                f"its report of round {asked.round} comes {number - asked.round} rounds late; "
                f"cohort.late-rounds allows {self._most}"
            )
        check_report(report, asked)
        return asked

    def folded(self, delta: RoundDelta) -> None:
        """Remember whose reports of which rounds are in a delta."""
        self._folded |= set(origins(delta).items())
