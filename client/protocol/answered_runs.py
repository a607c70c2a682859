"""The answers of a client in each run, on disk: its latest round, and its evaluations.

The file of a run bounds the scalars of one round, the evaluations, and the examples that they
count, and holds the evaluations that a repeated instruction gets. It is written before an answer
leaves.
"""

import base64
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from samara.shared.errors import EvaluationLimitError
from samara.shared.frames.instructions import EvaluateInstruction, TrainInstruction
from samara.shared.kept_file import KeptFile
from samara.shared.run_terms import MOST_RESTORES

ANSWERED_FILE = "answered.json"


@dataclass(frozen=True)
class AnsweredRun:
    """The answers of a client in a run.

    Attributes:
        round: latest round with a report.
        scalars: projected gradients in the reports of that round.
        token: token of the latest of these reports; empty before the first.
        compared: digest of the state that the personal comparison was made with; empty if none was.
        evaluations: by split, and whether the personal model was asked for, the token of the latest
            instruction and the evaluation that answered it.
        introduced: by name of the split, the number of examples in the latest hello; empty before.
        times: by round, split and kind of an evaluation, how often it was answered; in a run
            without a signed scenario they are not counted.
        restores: number of times that the server has gone back to a backup, as far as it counts.
    """

    round: int = 0
    scalars: int = 0
    token: bytes = b""
    compared: bytes = b""
    evaluations: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    introduced: dict[str, int] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)
    restores: int = 0

    @property
    def has_answers(self) -> bool:
        """Return whether anything about examples has left, but for their numbers."""
        return bool(self.round or self.token or self.evaluations)

    def sent_in_round(self, instruction: TrainInstruction, token: bytes) -> int:
        """Return the projected gradients sent in an instruction's round by other instructions."""
        return self.scalars if instruction.round <= self.round and token != self.token else 0

    def after_report(self, instruction: TrainInstruction, token: bytes) -> Self:
        """Return what has been answered after a report; a repeated one adds nothing."""
        if token == self.token:
            return self
        scalars = self.sent_in_round(instruction, token) + instruction.report_scalars
        latest = max(self.round, instruction.round)
        return replace(self, round=latest, scalars=scalars, token=token)

    def find_evaluation(
        self, instruction: EvaluateInstruction, token: bytes, personal: bool
    ) -> bytes:
        """Return the evaluation that answered the same instruction; nothing if none did.

        Raises:
            EvaluationLimitError: if it asks for the personal comparison with another state than the
                one that it was made with.
        """
        answered, frame = self.evaluations.get(_question(instruction, personal), (b"", b""))
        if answered == token:
            return frame
        if personal and self.compared not in (b"", instruction.digest):
            raise EvaluationLimitError(
                f"round {instruction.round}: the server asks for another personal comparison, and "
                "this client has made that of this run"
            )
        return b""

    def times_answered(self, instruction: EvaluateInstruction, personal: bool) -> int:
        """Return how often an evaluation of a round was answered; the comparison has no round."""
        return self.times.get(_counted(instruction, personal), 0)

    def after_restore(self) -> Self:
        """Return what has been answered after the server has gone back to a backup."""
        return replace(self, restores=min(self.restores + 1, MOST_RESTORES))

    def after_evaluation(
        self,
        instruction: EvaluateInstruction,
        token: bytes,
        personal: bool,
        frame: bytes,
        is_counted: bool = False,
    ) -> Self:
        """Return what has been answered after an evaluation.

        Args:
            instruction: evaluate instruction.
            token: its token, 8 bytes.
            personal: whether the personal comparison was asked for.
            frame: the evaluation.
            is_counted: whether it counts against what the operator has signed.
        """
        answered = self.times_answered(instruction, personal) + 1
        counted = {_counted(instruction, personal): answered} if is_counted else {}
        return replace(
            self,
            times=self.times | counted,
            compared=instruction.digest if personal else self.compared,
            evaluations=self.evaluations | {_question(instruction, personal): (token, frame)},
        )


class _AnsweredFile(KeptFile[AnsweredRun]):
    """The file of a run."""

    name = ANSWERED_FILE
    damaged = (
        "{file}: what this client has answered cannot be read: {problem}; restore the file from a "
        "backup, or delete it if the run may be answered anew"
    )
    empty = AnsweredRun

    def _to_json(self, content: AnsweredRun) -> Any:
        evaluations = {
            question: {"token": token, "frame": base64.b64encode(frame).decode()}
            for question, (token, frame) in content.evaluations.items()
        }
        counted = {"times": content.times, "restores": content.restores}
        without = {name for name, value in counted.items() if not value}
        fields = asdict(content) | {"evaluations": evaluations}
        return {name: value for name, value in fields.items() if name not in without}

    def _parse(self, value: Any) -> AnsweredRun:
        return AnsweredRun(
            int(value["round"]),
            int(value["scalars"]),
            bytes.fromhex(value["token"]),
            bytes.fromhex(value["compared"]),
            {
                question: (
                    bytes.fromhex(one["token"]),
                    base64.b64decode(one["frame"], validate=True),
                )
                for question, one in value["evaluations"].items()
            },
            {split: int(count) for split, count in value.get("introduced", {}).items()},
            {question: int(count) for question, count in value.get("times", {}).items()},
            int(value.get("restores", 0)),
        )


class AnsweredRuns:
    """The files of a client's runs.

    Args:
        folder_of: function that gives the folder of a run's files; None keeps nothing.
    """

    def __init__(self, folder_of: Callable[[bytes], Path] | None) -> None:
        self._folder_of = folder_of

    def read(self, run_id: bytes) -> AnsweredRun:
        """Return what the client has answered in a run.

        Raises:
            TrainerError: if the file cannot be read.
        """
        return self._file(run_id).read()

    def write(self, run_id: bytes, answered: AnsweredRun) -> None:
        """Replace what the client has answered in a run; it is on the disk when this returns.

        Raises:
            TrainerError: if the file cannot be written.
        """
        self._file(run_id).write(answered)

    def _file(self, run_id: bytes) -> _AnsweredFile:
        return _AnsweredFile(self._folder_of and self._folder_of(run_id))


def _counted(instruction: EvaluateInstruction, personal: bool) -> str:
    question = _question(instruction, personal)
    return question if personal else f"{question} {instruction.round}"


def _question(instruction: EvaluateInstruction, personal: bool) -> str:
    split = instruction.split.name.lower()
    return f"personal {split}" if personal else split
