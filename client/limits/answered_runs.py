"""A client's stored answers in each run: the reports of its latest round, and its evaluations.

The client checks each new instruction of a run against these answers. The checks cover the number
of scalars in a round, the evaluations, and their numbers of examples. A repeated evaluate
instruction gets the stored evaluation again. The file is written before an answer leaves.
"""

import base64
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from samara.shared.errors import EvaluationLimitError
from samara.shared.protocol.frames.instructions import EvaluateInstruction, TrainInstruction
from samara.shared.storage.kept_file import KeptFile
from samara.shared.terms.run_terms import MOST_RESTORES

ANSWERED_FILE = "answered.json"


@dataclass(frozen=True)
class AnsweredRun:
    """The answers of a client in a run.

    Attributes:
        round: latest round with a report.
        scalars: number of projected gradients in the reports of that round.
        token: token of the instruction that the latest report answered; empty before the first
            report.
        compared: digest of the model state in the personal comparison; empty before the comparison.
        evaluations: token of the latest instruction, and the evaluation that answered it, by split
            and kind of evaluation.
        introduced: number of examples in the latest hello, by name of the split; empty before the
            first hello.
        times: number of answers by round, split and kind of evaluation; only counted with a signed
            scenario.
        restores: number of times that the server has gone back to a backup, at most
            `MOST_RESTORES`.
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
        """True if the client has sent a report or an evaluation in the run."""
        return bool(self.round or self.token or self.evaluations)

    def sent_in_round(self, instruction: TrainInstruction, token: bytes) -> int:
        """Return the number of projected gradients sent for other instructions of a round."""
        return self.scalars if instruction.round <= self.round and token != self.token else 0

    def after_report(self, instruction: TrainInstruction, token: bytes) -> Self:
        """Return a copy with a report added, or an equal copy if the report is a repetition."""
        if token == self.token:
            return self
        scalars = self.sent_in_round(instruction, token) + instruction.report_scalars
        latest = max(self.round, instruction.round)
        return replace(self, round=latest, scalars=scalars, token=token)

    def find_evaluation(
        self, instruction: EvaluateInstruction, token: bytes, personal: bool
    ) -> bytes:
        """Return the stored evaluation for an instruction, or b"" for a new instruction.

        Raises:
            EvaluationLimitError: if the instruction requests a second personal comparison, for
                another state.
        """
        answered, frame = self.evaluations.get(_question(instruction, personal), (b"", b""))
        if answered == token:
            return frame
        if personal and self.compared not in (b"", instruction.digest):
            raise EvaluationLimitError(
                f"round {instruction.round}: the server asks for a second personal comparison, but "
                "a client makes only one comparison in a run"
            )
        return b""

    def times_answered(self, instruction: EvaluateInstruction, personal: bool) -> int:
        """Return the number of answers to a round's evaluation or to the run's comparison."""
        return self.times.get(_counted(instruction, personal), 0)

    def after_restore(self) -> Self:
        """Return a copy in which the server has been restored from a backup once more."""
        return replace(self, restores=min(self.restores + 1, MOST_RESTORES))

    def after_evaluation(
        self,
        instruction: EvaluateInstruction,
        token: bytes,
        personal: bool,
        frame: bytes,
        is_counted: bool = False,
    ) -> Self:
        """Return a copy with an evaluation added.

        Args:
            instruction: evaluate instruction.
            token: token of the instruction, 8 bytes.
            personal: whether the personal comparison was requested.
            frame: the evaluation.
            is_counted: whether the evaluation counts against the limits of the operator's signed
                scenario.
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
    """The file with a client's answers in a run."""

    name = ANSWERED_FILE
    damaged = (
        "{file}: the client's stored answers cannot be read: {problem}; restore the file from a "
        "backup, or delete it if the client may answer the run's instructions again"
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
    """The files with a client's answers, one per run.

    Args:
        folder_of: function that returns the folder of a run's files; None stores nothing.
    """

    def __init__(self, folder_of: Callable[[bytes], Path] | None) -> None:
        self._folder_of = folder_of

    def read(self, run_id: bytes) -> AnsweredRun:
        """Read the client's answers in a run.

        Raises:
            TrainerError: if the file cannot be read.
        """
        return self._file(run_id).read()

    def write(self, run_id: bytes, answered: AnsweredRun) -> None:
        """Replace a run's stored answers durably.

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
