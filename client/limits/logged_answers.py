"""The lines of a client's log of answers, and the totals of many answers by run."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from samara.shared.errors import FrameError
from samara.shared.privacy.vector import OTHERS
from samara.shared.protocol.frames.evaluation import Evaluation
from samara.shared.protocol.frames.instructions import (
    EvaluateInstruction,
    TrainInstruction,
    token_of,
)
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.wire import Kind, kind_of

EARLIER = "earlier runs"
"""Name of the entry that combines the totals of old runs."""
MOST_RUNS = 100
"""Maximum number of runs with separate totals."""
SUMS = ("answers", "repeated", "refused", "scalars", "losses", "counts", "sent_bytes", "ratio")
"""Fields of `AnswerTotals` that are summed when runs are combined."""
_VECTORS = (Kind.VECTOR_REPORT, Kind.NOISED_VECTOR_REPORT, Kind.MASKED_REPORT)
_RECENT = 8
"""Number of latest answers per run whose keys are kept in the totals to recognize repetitions. A
client can repeat fewer answers than this."""
_MOST_REASON = 500


@dataclass(frozen=True)
class LoggedAnswer:
    """An answer or refusal, logged just before it left the device.

    Attributes:
        asked: ``train``, ``evaluate``, ``compare`` (the personal comparison), or ``other``.
        time: seconds since 1970, by the device's clock.
        sent_bytes: size of the answer, a frame.
        run: run id in hex; empty if the message names none.
        round: round of the instruction.
        token: token of the instruction in hex.
        steps, queries, batch, epsilon: K, q, B and ε of a train instruction; 0 otherwise.
        split: split of an evaluate instruction; empty otherwise.
        trained: number of trained numbers, d.
        scalars: number of projected gradients in the answer.
        losses: number of losses and curvatures in the answer.
        counts: number of counts in the answer: 1 for a report's number of examples, or the cells of
            an evaluation's confusions.
        refused: reason of a refusal; empty for an answer. The frame of a refusal contains only a
            code and two numbers.
    """

    asked: str
    time: int = 0
    sent_bytes: int = 0
    run: str = ""
    round: int = 0
    token: str = ""
    steps: int = 0
    queries: int = 0
    batch: int = 0
    epsilon: float = 0.0
    split: str = ""
    trained: int = 0
    scalars: int = 0
    losses: int = 0
    counts: int = 0
    refused: str = ""

    @classmethod
    def of(cls, time: int, instruction: bytes, answer: bytes, personal: bool, trained: int) -> Self:
        """Return the log's entry for an answer.

        Args:
            time: seconds since 1970.
            instruction: train or evaluate instruction, a frame.
            answer: report or evaluation, a frame.
            personal: whether the personal comparison was requested.
            trained: number of trained numbers, d.

        Raises:
            FrameError: if instruction or answer is another kind of frame.
        """
        about: dict[str, Any]
        if kind_of(answer) is Kind.EVALUATION:
            columns = Evaluation.decode(answer).columns
            counts = sum(column.counts.size for column in columns)
            about = {"losses": len(columns), "counts": counts}
        elif kind_of(answer) in _VECTORS:
            train = TrainInstruction.decode(instruction)
            others = OTHERS + (train.joint_clip > 0)
            about = {"scalars": train.report_scalars, "losses": others}
        else:
            report = Report.decode(answer)
            losses = 1 + (report.curvature is not None)
            about = {"scalars": report.gradients.size, "losses": losses, "counts": 1}
        asked = _describe_instruction(instruction, personal)
        return cls(time=time, sent_bytes=len(answer), trained=trained, **asked, **about)

    @classmethod
    def of_refusal(
        cls, time: int, instruction: bytes, refusal: bytes, personal: bool, reason: str
    ) -> Self:
        """Return the log's entry for a refusal.

        Args:
            time: seconds since 1970.
            instruction: the refused message; any bytes.
            refusal: the refusal, a frame.
            personal: whether the personal comparison was requested.
            reason: the reason, shortened to one line of 500 characters.
        """
        try:
            asked = _describe_instruction(instruction, personal)
        except FrameError:
            asked = {"asked": "other"}
        reason = " ".join(reason.split())[:_MOST_REASON] or "no reason given"
        return cls(time=time, sent_bytes=len(refusal), refused=reason, **asked)

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Self:
        """Read an answer from a line of the log.

        Raises:
            ValueError, TypeError, KeyError: if the line holds no answer.
        """
        kinds = {field.name: field.type for field in fields(cls)}
        for name, value in content.items():
            kind = kinds[name]
            if not isinstance(value, (int, float) if kind is float else kind):  # type: ignore[arg-type]
                raise TypeError(f"{name} is {value!r}")
        return cls(**content)

    def to_json(self) -> str:
        """Return the answer as a line of the log, without zero or empty fields."""
        return json.dumps({name: value for name, value in asdict(self).items() if value})

    @property
    def key(self) -> str:
        """Key of the answered instruction. Answers with equal keys answer the same instruction."""
        return f"{self.token} {self.asked}"

    @property
    def ratio(self) -> float:
        """Number of scalars and losses, divided by the number of trained numbers."""
        return (self.scalars + self.losses) / self.trained if self.trained else 0.0


@dataclass(frozen=True)
class AnswerTotals:
    """The totals of a run's answers. A repeated answer adds only its bytes.

    Attributes:
        run: run id in hex; empty for messages that name none.
        first, last: seconds since 1970 of the first and the last answer, by the device's clock.
        answers: number of distinct answers.
        repeated: number of answers that were sent again.
        refused: number of refusals.
        scalars, losses, counts: numbers in the answers, as in `LoggedAnswer`.
        sent_bytes: size of all answers and refusals in bytes.
        ratio: number of scalars and losses, divided by the number of trained numbers.
        recent: keys of the latest answers, for recognizing repetitions.
    """

    run: str
    first: int
    last: int
    answers: int = 0
    repeated: int = 0
    refused: int = 0
    scalars: int = 0
    losses: int = 0
    counts: int = 0
    sent_bytes: int = 0
    ratio: float = 0.0
    recent: tuple[str, ...] = ()

    def after(self, answer: LoggedAnswer) -> Self:
        """Return the totals with one more answer."""
        totals = replace(self, last=answer.time, sent_bytes=self.sent_bytes + answer.sent_bytes)
        if answer.refused:
            return replace(totals, refused=self.refused + 1)
        if answer.key in self.recent:
            return replace(totals, repeated=self.repeated + 1)
        return replace(
            totals,
            answers=self.answers + 1,
            scalars=self.scalars + answer.scalars,
            losses=self.losses + answer.losses,
            counts=self.counts + answer.counts,
            ratio=self.ratio + answer.ratio,
            recent=(*self.recent, answer.key)[-_RECENT:],
        )

    def merged(self, other: Self) -> Self:
        """Return the totals of two runs combined under the name `EARLIER`."""
        added = {name: getattr(self, name) + getattr(other, name) for name in SUMS}
        first, last = min(self.first, other.first), max(self.last, other.last)
        return replace(self, run=EARLIER, first=first, last=last, recent=(), **added)


Totals = dict[str, AnswerTotals]


def add_answers(totals: Mapping[str, AnswerTotals], answers: Iterable[LoggedAnswer]) -> Totals:
    """Add answers to totals by run, in the order of the log.

    Args:
        totals: totals of the earlier answers, by run.
        answers: the answers.
    """
    after = dict(totals)
    for answer in answers:
        before = after.pop(answer.run, AnswerTotals(answer.run, answer.time, answer.time))
        after[answer.run] = before.after(answer)  # keep the latest run last
        if len(after) > MOST_RUNS:
            earlier = after.pop(EARLIER, None) or after.pop(next(iter(after)))
            after = {EARLIER: earlier.merged(after.pop(next(iter(after))))} | after
    return after


def _describe_instruction(instruction: bytes, personal: bool) -> dict[str, Any]:
    """Return the log entry's fields for an instruction.

    Raises:
        FrameError: if the bytes are not an instruction.
    """
    token = {"token": token_of(instruction).hex()}
    if kind_of(instruction) is Kind.EVALUATE:
        evaluate = EvaluateInstruction.decode(instruction)
        return token | {
            "asked": "compare" if personal else "evaluate",
            "run": evaluate.run_id.hex(),
            "round": evaluate.round,
            "split": evaluate.split.name.lower(),
        }
    train = TrainInstruction.decode(instruction)
    return token | {
        "asked": "train",
        "run": train.run_id.hex(),
        "round": train.round,
        "steps": train.steps,
        "queries": train.queries,
        "batch": train.batch,
        "epsilon": train.epsilon,
    }
