"""The log of a client's answers: a file that its owner can read, written before they leave.

It has one JSON object per line. When it is long, the older half of its answers is replaced by
totals, in the first line. Its times are those of the device's clock, which may be wrong.
"""

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from samara.client.protocol.logged_answers import AnswerTotals, LoggedAnswer, Totals, add_answers
from samara.shared.errors import SamaraError, TrainerError
from samara.shared.files import make_folder, sync_folder, write_durably

log = logging.getLogger("samara.client")

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

    def to_lines(self) -> str:
        """Return the content as a file."""
        totals = [asdict(totals) for totals in self.totals.values()]
        first = json.dumps({"totals": totals, "damaged": self.damaged})
        return "".join(f"{line}\n" for line in [first, *(one.to_json() for one in self.answers)])


def read_answers(folder: Path) -> AnswerHistory:
    """Read the log of a client; a last line that is still being written is left out.

    Args:
        folder: folder of the client.

    Raises:
        TrainerError: if the file cannot be read.
    """
    file = folder / ANSWERS_FILE
    try:
        lines = file.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        lines = []
    except OSError as error:
        raise TrainerError(f"{file}: cannot be read: {error.strerror}") from error
    totals: Totals = {}
    answers, damaged = [], 0
    for number, line in enumerate(lines):
        try:
            content = json.loads(line)
            if number == 0 and "totals" in content:
                totals, damaged = _parse_totals(content)
            else:
                answers.append(LoggedAnswer.parse(content))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            damaged += 1
    return AnswerHistory(totals, tuple(answers), damaged)


class AnswerLog:
    """The log of one client, which one process writes.

    Args:
        folder: folder of the client; made if it does not exist.
        clock: function that gives the seconds since 1970.
        most_bytes: size of the file at which its older half is replaced by totals.
    """

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], float] = time.time,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._folder, self._clock, self._most_bytes = folder, clock, most_bytes

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
        now = int(self._clock())
        self._append(LoggedAnswer.of(now, instruction, answer, personal, trained))

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
        now = int(self._clock())
        self._append(LoggedAnswer.of_refusal(now, instruction, refusal, personal, str(error)))

    def _append(self, answer: LoggedAnswer) -> None:
        file = self._folder / ANSWERS_FILE
        try:
            make_folder(self._folder)
            is_new = not file.exists()
            with file.open("a+b") as lines:
                _cut_half_line(lines.fileno(), file)
                lines.write(answer.to_json().encode() + b"\n")
                lines.flush()
                os.fsync(lines.fileno())
                size = lines.tell()
            if is_new:
                sync_folder(self._folder)
            if size > self._most_bytes:
                write_durably(file, read_answers(self._folder).shortened().to_lines().encode())
        except OSError as error:
            raise TrainerError(f"{file}: cannot be written: {error.strerror}") from error


def _cut_half_line(descriptor: int, file: Path) -> None:
    """Cut a log to its last whole line: the answer of a half one has never left.

    Raises:
        OSError: if reading or writing fails.
    """
    size = os.fstat(descriptor).st_size
    if not size or os.pread(descriptor, 1, size - 1) == b"\n":
        return
    whole = file.read_bytes().rfind(b"\n") + 1
    log.warning("%s: the last line is not whole; %d bytes are cut off", file, size - whole)
    os.ftruncate(descriptor, whole)


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
