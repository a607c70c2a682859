"""The lines of a client's log of answers, and the totals of many answers by run. Pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from samara.shared.errors import FrameError
from samara.shared.frames.evaluation import Evaluation
from samara.shared.frames.instructions import EvaluateInstruction, TrainInstruction, token_of
from samara.shared.frames.report import Report
from samara.shared.privacy.vector import OTHERS
from samara.shared.wire import Kind, kind_of

EARLIER = "earlier runs"
"""The name under which the totals of old runs are added up."""
MOST_RUNS = 100
"""Runs whose totals are kept apart."""
SUMS = ("answers", "repeated", "refused", "scalars", "losses", "counts", "sent_bytes", "ratio")
"""The totals that are added up over runs."""
_VECTORS = (Kind.VECTOR_REPORT, Kind.NOISED_VECTOR_REPORT, Kind.MASKED_REPORT)
_RECENT = 8
"""Answers of a run that are remembered beside its totals; a client stores fewer for repetition."""
_MOST_REASON = 500


@dataclass(frozen=True)
class LoggedAnswer:
    """One answer, or refusal, that was about to leave the device.

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
        scalars: projected gradients in the answer.
        losses: losses in the answer, and curvatures.
        counts: counts in the answer: a report's number of examples, an evaluation's confusions.
        refused: reason of a refusal, which itself says a code and two numbers; empty for an answer.
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
        """Return what the log says of an answer.

        Args:
            time: seconds since 1970.
            instruction: train or evaluate instruction, a frame.
            answer: report or evaluation, a frame.
            personal: whether the personal comparison was asked for.
            trained: number of trained numbers, d.

        Raises:
            FrameError: if one of them is something else.
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
        """Return what the log says of a refusal.

        Args:
            time: seconds since 1970.
            instruction: the refused message; any bytes.
            refusal: the refusal, a frame.
            personal: whether the personal comparison was asked for.
            reason: the reason; its first 500 characters are kept, in one line.
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
            ValueError, TypeError, KeyError: if it is none.
        """
        kinds = {field.name: field.type for field in fields(cls)}
        for name, value in content.items():
            kind = kinds[name]
            if not isinstance(value, (int, float) if kind is float else kind):  # type: ignore[arg-type]
                raise TypeError(f"{name} is {value!r}")
        return cls(**content)

    def to_json(self) -> str:
        """Return the answer as a line of the log, without what is 0 or empty."""
        return json.dumps({name: value for name, value in asdict(self).items() if value})

    @property
    def key(self) -> str:
        """The question in its run; answers with the same one are the same answer."""
        return f"{self.token} {self.asked}"

    @property
    def ratio(self) -> float:
        """Scalars and losses, divided by the number of trained numbers."""
        return (self.scalars + self.losses) / self.trained if self.trained else 0.0


@dataclass(frozen=True)
class AnswerTotals:
    """The totals of a run's answers. A repeated answer adds its bytes only.

    Attributes:
        run: run id in hex; empty for messages that name none.
        first, last: seconds since 1970 of the first and the last answer, by the device's clock.
        answers: number of different answers.
        repeated: number of answers that were sent again.
        refused: number of refusals.
        scalars, losses, counts: numbers in the answers, as in `LoggedAnswer`.
        sent_bytes: size of all answers and refusals.
        ratio: scalars and losses, divided by the number of trained numbers.
        recent: keys of the latest answers, by which a repeated one is known.
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
        """Return the totals of two runs together, under the name of the earlier runs."""
        added = {name: getattr(self, name) + getattr(other, name) for name in SUMS}
        first, last = min(self.first, other.first), max(self.last, other.last)
        return replace(self, run=EARLIER, first=first, last=last, recent=(), **added)


Totals = dict[str, AnswerTotals]


def add_answers(totals: Mapping[str, AnswerTotals], answers: Iterable[LoggedAnswer]) -> Totals:
    """Return totals by run with more answers, in the order of the log.

    Args:
        totals: totals of the answers before, by run.
        answers: the answers.
    """
    after = dict(totals)
    for answer in answers:
        before = after.pop(answer.run, AnswerTotals(answer.run, answer.time, answer.time))
        after[answer.run] = before.after(answer)  # the latest run is the last one
        if len(after) > MOST_RUNS:
            earlier = after.pop(EARLIER, None) or after.pop(next(iter(after)))
            after = {EARLIER: earlier.merged(after.pop(next(iter(after))))} | after
    return after


def _describe_instruction(instruction: bytes, personal: bool) -> dict[str, Any]:
    """Return what the log says of an instruction.

    Raises:
        FrameError: if the bytes are none.
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
