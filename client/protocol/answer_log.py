"""The log of a client's answers: a file that its owner can read, written before they leave.

It has one JSON object per line. When it is long, the older half of its answers is replaced by
totals, in the first line. Its times are those of the device's clock, which may be wrong.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from samara.client.protocol.logged_answers import AnswerTotals, LoggedAnswer, Totals, add_answers
from samara.shared.errors import SamaraError
from samara.shared.kept_file import KeptLog

ANSWERS_FILE = "answers.jsonl"
MOST_BYTES = 4 * 2**20
"""Size of the file at which its older half is replaced by totals."""


@dataclass(frozen=True)
class AnswerHistory:
    """The content of a log.

    Attributes:
        totals: totals of the answers that are no longer in the file, by run.
        answers: the later answers.
        damaged: number of lines that cannot be read, also of those no longer in the file.
    """

    totals: Totals
    answers: tuple[LoggedAnswer, ...]
    damaged: int = 0

    @property
    def all_totals(self) -> Totals:
        """The totals of all answers, by run, the latest run last."""
        return add_answers(self.totals, self.answers)

    def shortened(self) -> "AnswerHistory":
        """Return the same totals with the later half of the answers."""
        half = (len(self.answers) + 1) // 2
        totals = add_answers(self.totals, self.answers[:half])
        return AnswerHistory(totals, self.answers[half:], self.damaged)

    def to_lines(self) -> Iterator[bytes]:
        """Yield the lines of the content as a file."""
        totals = [asdict(totals) for totals in self.totals.values()]
        yield json.dumps({"totals": totals, "damaged": self.damaged}).encode()
        for answer in self.answers:
            yield answer.to_json().encode()


def read_answers(folder: Path) -> AnswerHistory:
    """Read the log of a client; a last line that is still being written is left out.

    Args:
        folder: folder of the client.

    Raises:
        TrainerError: if the file cannot be read.
    """
    totals: Totals = {}
    answers, damaged = [], 0
    for number, line in enumerate(AnswerLog(folder).read_lines()):
        try:
            content = json.loads(line)
            if number == 0 and "totals" in content:
                totals, damaged = _parse_totals(content)
            else:
                answers.append(LoggedAnswer.parse(content))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            damaged += 1
    return AnswerHistory(totals, tuple(answers), damaged)


class AnswerLog(KeptLog):
    """The log of one client, which one process writes.

    Args:
        folder: folder of the client; made if it does not exist. None logs nothing.
        clock: function that gives the seconds since 1970.
        most_bytes: size of the file at which its older half is replaced by totals.
    """

    name = ANSWERS_FILE

    def __init__(
        self,
        folder: Path | None,
        clock: Callable[[], float] = time.time,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        super().__init__(folder)
        self._clock, self._most_bytes = clock, most_bytes

    def add(self, instruction: bytes, answer: bytes, personal: bool, trained: int) -> None:
        """Log an answer; it is on the disk when this returns.

        Args:
            instruction: train or evaluate instruction, a frame.
            answer: report or evaluation, a frame.
            personal: whether the personal comparison was asked for.
            trained: number of trained numbers, d.

        Raises:
            TrainerError: if the file cannot be written.
        """
        self._log(lambda now: LoggedAnswer.of(now, instruction, answer, personal, trained))

    def add_refusal(
        self, instruction: bytes, refusal: bytes, personal: bool, error: SamaraError
    ) -> None:
        """Log a refusal with its reason; it is on the disk when this returns.

        Args:
            instruction: the refused message; any bytes.
            refusal: the refusal, a frame.
            personal: whether the personal comparison was asked for.
            error: the reason.

        Raises:
            TrainerError: if the file cannot be written.
        """
        self._log(
            lambda now: LoggedAnswer.of_refusal(now, instruction, refusal, personal, str(error))
        )

    def _log(self, answer_at: Callable[[int], LoggedAnswer]) -> None:
        if self.path is None:
            return
        line = answer_at(int(self._clock())).to_json()
        if self.append(line.encode()) > self._most_bytes:
            self.replace(read_answers(self.path.parent).shortened().to_lines())


def _parse_totals(content: dict[str, object]) -> tuple[Totals, int]:
    """Read the first line of a log that was shortened.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: if it is no such line.
    """
    rows, damaged = content["totals"], content["damaged"]
    if not isinstance(rows, list) or not isinstance(damaged, int):
        raise TypeError("no list of totals")
    parsed = [AnswerTotals(**row | {"recent": tuple(row["recent"])}) for row in rows]
    return {totals.run: totals for totals in parsed}, damaged
