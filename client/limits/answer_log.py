"""The log of a client's answers, for the client's owner.

The log has one JSON object per line. The line of an answer is written before the answer leaves. In
a long log, totals in the first line replace the older half of the answers. The times come from the
device's clock, which may be wrong.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from samara.client.limits.logged_answers import AnswerTotals, LoggedAnswer, Totals, add_answers
from samara.shared.errors import SamaraError
from samara.shared.storage.kept_file import KeptLog

ANSWERS_FILE = "answers.jsonl"
MOST_BYTES = 4 * 2**20
"""Size in bytes at which totals replace the file's older half."""


@dataclass(frozen=True)
class AnswerHistory:
    """The content of an answer log.

    Attributes:
        totals: by run, totals of the earlier answers, whose lines are no longer in the file.
        answers: the later answers.
        damaged: number of unreadable lines, including lines no longer in the file.
    """

    totals: Totals
    answers: tuple[LoggedAnswer, ...]
    damaged: int = 0

    @property
    def all_totals(self) -> Totals:
        """Totals of all answers by run, with the latest run last."""
        return add_answers(self.totals, self.answers)

    def shortened(self) -> "AnswerHistory":
        """Return the history after moving the earlier half of the answers into the totals."""
        half = (len(self.answers) + 1) // 2
        totals = add_answers(self.totals, self.answers[:half])
        return AnswerHistory(totals, self.answers[half:], self.damaged)

    def to_lines(self) -> Iterator[bytes]:
        """Yield the lines of the log's file."""
        totals = [asdict(totals) for totals in self.totals.values()]
        yield json.dumps({"totals": totals, "damaged": self.damaged}).encode()
        for answer in self.answers:
            yield answer.to_json().encode()


def read_answers(folder: Path) -> AnswerHistory:
    """Read the log of a client, without an incomplete last line.

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
    """The answer log of one client, written by a single process.

    Args:
        folder: folder of the client, created if it is missing; None for no log.
        clock: function that returns the seconds since 1970.
        most_bytes: size of the file in bytes at which totals replace the older half.
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
        """Log an answer durably, before it is sent.

        Args:
            instruction: train or evaluate instruction, a frame.
            answer: report or evaluation, a frame.
            personal: whether the personal comparison was requested.
            trained: number d of the adapter's trained numbers.

        Raises:
            TrainerError: if the file cannot be written.
        """
        self._log(lambda now: LoggedAnswer.of(now, instruction, answer, personal, trained))

    def add_refusal(
        self, instruction: bytes, refusal: bytes, personal: bool, error: SamaraError
    ) -> None:
        """Log a refusal with its reason durably, before it is sent.

        Args:
            instruction: the refused message; any bytes.
            refusal: the refusal, a frame.
            personal: whether the personal comparison was requested.
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
    """Return the totals in the first line of a shortened log, and its number of damaged lines.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: if the line has no totals.
    """
    rows, damaged = content["totals"], content["damaged"]
    if not isinstance(rows, list) or not isinstance(damaged, int):
        raise TypeError("no list of totals")
    parsed = [AnswerTotals(**row | {"recent": tuple(row["recent"])}) for row in rows]
    return {totals.run: totals for totals in parsed}, damaged
