"""The answers of a client in each run, on disk: its latest round, and its evaluations.

The file of a run bounds the scalars of one round, the personal comparisons, and the examples that
an evaluation counts, and holds the evaluations that a repeated instruction gets. It is written
before an answer leaves.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from samara.shared.errors import EvaluationLimitError, TrainerError
from samara.shared.files import make_folder, write_durably
from samara.shared.frames.instructions import EvaluateInstruction, TrainInstruction

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
    """

    round: int = 0
    scalars: int = 0
    token: bytes = b""
    compared: bytes = b""
    evaluations: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    introduced: dict[str, int] = field(default_factory=dict)

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

    def after_evaluation(
        self, instruction: EvaluateInstruction, token: bytes, personal: bool, frame: bytes
    ) -> Self:
        """Return what has been answered after an evaluation.

        Args:
            instruction: evaluate instruction.
            token: its token, 8 bytes.
            personal: whether the personal comparison was asked for.
            frame: the evaluation.
        """
        return replace(
            self,
            compared=instruction.digest if personal else self.compared,
            evaluations=self.evaluations | {_question(instruction, personal): (token, frame)},
        )


class AnsweredRuns:
    """The files of a client's runs.

    Args:
        folder_of: function that gives the folder of a run's files.
    """

    def __init__(self, folder_of: Callable[[bytes], Path]) -> None:
        self._folder_of = folder_of

    def read(self, run_id: bytes) -> AnsweredRun:
        """Return what the client has answered in a run.

        Raises:
            TrainerError: if the file cannot be read. It is not replaced by an empty one, which
                would lift limits.
        """
        file = self._folder_of(run_id) / ANSWERED_FILE
        try:
            return _parse(json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return AnsweredRun()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise TrainerError(
                f"{file}: what this client has answered cannot be read: {error!r}; restore the "
                "file from a backup, or delete it if the run may be answered anew"
            ) from error

    def write(self, run_id: bytes, answered: AnsweredRun) -> None:
        """Replace what the client has answered in a run; it is on the disk when this returns.

        Raises:
            TrainerError: if the file cannot be written.
        """
        file = self._folder_of(run_id) / ANSWERED_FILE
        content = {
            "round": answered.round,
            "scalars": answered.scalars,
            "token": answered.token.hex(),
            "compared": answered.compared.hex(),
            "evaluations": {
                question: {"token": token.hex(), "frame": base64.b64encode(frame).decode()}
                for question, (token, frame) in answered.evaluations.items()
            },
            "introduced": answered.introduced,
        }
        try:
            make_folder(file.parent)
            write_durably(file, json.dumps(content, sort_keys=True, indent=1).encode())
        except OSError as error:
            raise TrainerError(f"{file}: cannot be written: {error.strerror}") from error


def _question(instruction: EvaluateInstruction, personal: bool) -> str:
    split = instruction.split.name.lower()
    return f"personal {split}" if personal else split


def _parse(content: dict[str, Any]) -> AnsweredRun:
    """Read the content of a file.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: if it is no such content.
    """
    return AnsweredRun(
        int(content["round"]),
        int(content["scalars"]),
        bytes.fromhex(content["token"]),
        bytes.fromhex(content["compared"]),
        {
            question: (bytes.fromhex(one["token"]), base64.b64decode(one["frame"], validate=True))
            for question, one in content["evaluations"].items()
        },
        {split: int(count) for split, count in content.get("introduced", {}).items()},
    )
