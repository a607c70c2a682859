"""The guard of a client's answers: it checks each against its owner's limits, and counts it."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from samara.client.protocol.answer_limits import (
    AnswerLimits,
    check_split,
    count_losses,
    count_report_scalars,
)
from samara.client.protocol.answered_runs import AnsweredRuns
from samara.client.protocol.privacy_budget import ChargeLog, PrivacyBudget
from samara.client.protocol.scalar_counts import ScalarBudget, ScalarCounts
from samara.shared.frames.evaluation import Evaluation
from samara.shared.frames.instructions import EvaluateInstruction, Split, TrainInstruction

UNCOUNTED = ScalarBudget(ScalarCounts(None), lambda _: (), size=1, limit=0.0)
"""The scalar budget of a client that counts nothing."""
UNCHARGED = PrivacyBudget(ChargeLog(None), terms=None, limit=0.0)
"""The privacy budget of a client that charges nothing."""


class AnswerGuard:
    """The limits and the counts of one client under the settings of a run.

    Args:
        limits: the owner's limits.
        smallest_batch: function that gives the number of the client's examples in the smallest
            batch of an instruction's steps.
        budget: counts of sent scalars and their limit; None is `UNCOUNTED`.
        answered: what the client has answered in each run; None keeps nothing.
        privacy: what its noised reports have cost, and the limit of it; None is `UNCHARGED`.
    """

    def __init__(
        self,
        limits: AnswerLimits,
        smallest_batch: Callable[[TrainInstruction], int],
        budget: ScalarBudget | None = None,
        answered: AnsweredRuns | None = None,
        privacy: PrivacyBudget | None = None,
    ) -> None:
        self._limits, self._smallest_batch = limits, smallest_batch
        self._budget, self._privacy = budget or UNCOUNTED, privacy or UNCHARGED
        self._answered = answered or AnsweredRuns(None)

    def add_introduction(self, run_id: bytes, counts: Mapping[Split, int]) -> None:
        """Keep what a hello introduces; it is on the disk when this returns.

        Args:
            run_id: run id, 8 bytes.
            counts: number of the client's examples of each split.

        Raises:
            TrainerError: if the file cannot be read or written.
        """
        answered = self._answered.read(run_id)
        introduced = {split.name.lower(): count for split, count in counts.items()}
        if introduced != answered.introduced:
            self._answered.write(run_id, replace(answered, introduced=introduced))

    def introduced(self, run_id: bytes) -> dict[Split, int]:
        """Return how many examples of each split a client has introduced, which a server counts.

        Raises:
            TrainerError: if the file cannot be read.
        """
        counts = self._answered.read(run_id).introduced
        return {split: counts[name] for split in Split if (name := split.name.lower()) in counts}

    def find_report(self, token: bytes) -> bytes:
        """Return the noised report that answered the same instruction; nothing if none did.

        It is there also if the session that held it is lost.

        Raises:
            BudgetError: if one did, and is no longer kept.
            TrainerError: if the charges cannot be read.
        """
        return self._privacy.find_report(token)

    def check_report(self, instruction: TrainInstruction, token: bytes) -> None:
        """Raise an error if the report on an instruction is over a limit.

        Raises:
            BatchLimitError: if a step would use too few examples.
            ScalarLimitError: if it would hold too many scalars.
            BudgetError: if it would cost too much privacy.
            TrainerError: if the counts cannot be read.
        """
        self._privacy.check(instruction)
        sent = self._answered.read(instruction.run_id).sent_in_round(instruction, token)
        self._limits.check_step(instruction, self._smallest_batch(instruction), sent)
        scalars = {Split.TRAIN: count_report_scalars(instruction)}
        self._budget.check(token, instruction.layout_hash, scalars)

    def add_report(self, instruction: TrainInstruction, token: bytes, report: bytes) -> None:
        """Count the report on an instruction, once; it is on the disk when this returns.

        Args:
            instruction: train instruction.
            token: its token, 8 bytes.
            report: the report, a frame; one with noise is kept with its charge.

        Raises:
            TrainerError: if the counts cannot be read or written.
        """
        scalars, run_id = {Split.TRAIN: count_report_scalars(instruction)}, instruction.run_id
        self._budget.add(token, instruction.layout_hash, scalars)
        answered = self._answered.read(run_id).after_report(instruction, token)
        self._answered.write(run_id, answered)
        self._privacy.add(instruction, token, report)

    def find_evaluation(
        self, instruction: EvaluateInstruction, token: bytes, personal: bool
    ) -> bytes:
        """Return the evaluation that answered the same instruction; nothing if none did.

        Args:
            instruction: evaluate instruction.
            token: its token, 8 bytes.
            personal: whether the personal comparison is asked for.

        Raises:
            EvaluationLimitError: if the instruction may not be answered at all.
            ScalarLimitError: if no further loss may leave.
            TrainerError: if the counts cannot be read.
        """
        check_split(instruction)
        answered = self._answered.read(instruction.run_id)
        if frame := answered.find_evaluation(instruction, token, personal):
            return frame
        question = _question_of(token, personal)
        self._budget.check(question, instruction.layout_hash, {instruction.split: 1})
        return b""

    def add_evaluation(
        self, instruction: EvaluateInstruction, evaluation: Evaluation, personal: bool
    ) -> bytes:
        """Count the losses of an evaluation, once, and keep it; return it as a frame.

        Args:
            instruction: evaluate instruction.
            evaluation: the answer to it.
            personal: whether the personal comparison was asked for.

        Raises:
            ScalarLimitError: if its losses are more than may still leave.
            TrainerError: if the counts cannot be read or written.
        """
        token, frame, run_id = evaluation.token, evaluation.encode(), instruction.run_id
        losses = count_losses(instruction.split, evaluation.columns)
        question = _question_of(token, personal)
        self._budget.check(question, instruction.layout_hash, losses)
        self._budget.add(question, instruction.layout_hash, losses)
        answered = self._answered.read(run_id)
        answered = answered.after_evaluation(instruction, token, personal, frame)
        self._answered.write(run_id, answered)
        return frame


def _question_of(token: bytes, personal: bool) -> bytes:
    """Return what an evaluation is counted by: one instruction asks for either of two."""
    return token + b"personal" if personal else token
