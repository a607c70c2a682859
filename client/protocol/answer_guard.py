"""The guard of a client's answers, which counts them and enforces the owner's limits."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from samara.client.limits.answer_limits import (
    AnswerLimits,
    check_split,
    count_losses,
    count_report_scalars,
)
from samara.client.limits.answer_log import AnswerLog
from samara.client.limits.answered_runs import AnsweredRuns
from samara.client.limits.pass_counts import PassCounts
from samara.client.limits.privacy_budget import ChargeLog, PrivacyBudget
from samara.client.limits.scalar_counts import ScalarBudget, ScalarCounts
from samara.client.personal.learner import Learner
from samara.client.protocol.client import Guard
from samara.client.protocol.session_store import SessionFolder
from samara.client.protocol.signed_runs import SERVER_DECIDES, SignedRuns
from samara.shared.errors import SamaraError
from samara.shared.proto.trainer_pb2 import Task
from samara.shared.protocol.frames.evaluation import Evaluation
from samara.shared.protocol.frames.instructions import EvaluateInstruction, Split, TrainInstruction
from samara.shared.terms.privacy import PrivacyTerms

log = logging.getLogger("samara.client")


@dataclass(frozen=True)
class Records:
    """The files in which a client records its answers; without a folder nothing is recorded.

    Attributes:
        answer_log: log of the answers, for the owner.
        answered: answers in each run.
        counts: counts of sent scalars.
        charges: privacy costs of reports with noise.
        passes: counts of rows that went through the model.
    """

    answer_log: AnswerLog = field(default_factory=lambda: AnswerLog(None))
    answered: AnsweredRuns = field(default_factory=lambda: AnsweredRuns(None))
    counts: ScalarCounts = field(default_factory=lambda: ScalarCounts(None))
    charges: ChargeLog = field(default_factory=lambda: ChargeLog(None))
    passes: PassCounts = field(default_factory=lambda: PassCounts(None))

    @classmethod
    def in_folder(cls, folder: Path) -> Self:
        """Return the files of a client in its folder."""
        return cls(
            AnswerLog(folder),
            AnsweredRuns(SessionFolder(folder).folder_of),
            ScalarCounts(folder),
            ChargeLog(folder),
            PassCounts(folder),
        )


class AnswerGuard(Guard):
    """The owner's limits and the counts of one client under the settings of a run.

    Args:
        limits: the owner's limits.
        learner: model and examples of the client.
        records: files in which the client keeps its answers.
        privacy: terms of the run's differential privacy; None without differential privacy.
        signed: runs with scenarios that the operator has signed.
    """

    def __init__(
        self,
        limits: AnswerLimits,
        learner: Learner,
        records: Records,
        privacy: PrivacyTerms | None = None,
        signed: SignedRuns = SERVER_DECIDES,
    ) -> None:
        self._limits, self._learner, self._signed = limits, learner, signed
        self._records, self._answered = records, records.answered
        self._trained = learner.layout.size
        self._budget = ScalarBudget(
            records.counts, learner.generations_of, self._trained, limits.scalar_limit
        )
        self._privacy = PrivacyBudget(records.charges, privacy, limits.epsilon_limit)

    def check(self, task: Task) -> None:
        """Check that a signed scenario allows an instruction; see `SignedRuns.check`."""
        self._signed.check(task.instruction, task.personal)

    def add_answer(self, task: Task, answer: bytes) -> None:
        """Log the answer to an instruction; see `AnswerLog.add`."""
        self._records.answer_log.add(task.instruction, answer, task.personal, self._trained)

    def add_refusal(self, task: Task, refusal: bytes, error: SamaraError) -> None:
        """Log a refusal.

        If the log cannot be written, the only consequence is a warning, because a refusal reveals
        nothing about the examples.
        """
        try:
            self._records.answer_log.add_refusal(task.instruction, refusal, task.personal, error)
        except SamaraError as problem:
            log.warning("%s", problem)

    def add_passes(self, run_id: bytes) -> None:
        """Add the rows run through the model since the last call to a run's count.

        Raises:
            TrainerError: if the counts cannot be written.
        """
        self._records.passes.add(run_id, self._learner.take_passes())

    def add_introduction(self, run_id: bytes, counts: Mapping[Split, int]) -> None:
        """Store the numbers of examples in a hello durably.

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
        """Return the number of examples by split that the client declared in its last hello.

        Raises:
            TrainerError: if the file cannot be read.
        """
        counts = self._answered.read(run_id).introduced
        return {split: counts[name] for split in Split if (name := split.name.lower()) in counts}

    def find_report(self, token: bytes) -> bytes:
        """Return the stored noised report for this instruction, or b"" without one.

        The report is stored in the file of privacy charges, which outlives the session.

        Raises:
            BudgetError: if the client sent a noised report but no longer stores it.
            TrainerError: if the charges cannot be read.
        """
        return self._privacy.find_report(token)

    def check_report(self, instruction: TrainInstruction, token: bytes) -> None:
        """Check that the report for an instruction stays within the limits.

        Raises:
            BatchLimitError: if a step would use too few examples.
            ScalarLimitError: if the report would hold too many scalars.
            BudgetError: if the report would exceed a privacy budget.
            ScenarioError: if the client has already answered another instruction of this signed run
                for the round.
            TrainerError: if the counts cannot be read.
        """
        self._signed.check_first(instruction, token)
        self._privacy.check(instruction)
        sent = self._answered.read(instruction.run_id).sent_in_round(instruction, token)
        self._limits.check_step(instruction, self._learner.smallest_batch(instruction), sent)
        scalars = {Split.TRAIN: count_report_scalars(instruction)}
        self._budget.check(token, instruction.layout_hash, scalars)

    def add_report(self, instruction: TrainInstruction, token: bytes, report: bytes) -> None:
        """Count the report for an instruction durably; a repeated report does not count again.

        Args:
            instruction: train instruction.
            token: token of the instruction, 8 bytes.
            report: the report as a frame; a report with noise is stored with its charge.

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
        """Return the stored evaluation that answered this instruction, or b"" without one.

        Args:
            instruction: evaluate instruction.
            token: token of the instruction, 8 bytes.
            personal: whether the personal comparison is requested.

        Raises:
            EvaluationLimitError: if the client never evaluates the requested split.
            ScenarioError: if a signed run allows no further evaluation of this kind.
            ScalarLimitError: if no further loss may be sent.
            TrainerError: if the counts cannot be read.
        """
        check_split(instruction)
        answered = self._answered.read(instruction.run_id)
        if frame := answered.find_evaluation(instruction, token, personal):
            return frame
        self._signed.check_evaluation(instruction, personal)
        question = _question_of(token, personal)
        self._budget.check(question, instruction.layout_hash, {instruction.split: 1})
        return b""

    def check_evaluated(self, instruction: EvaluateInstruction, is_fitted: bool) -> None:
        """Check that an evaluation covers enough examples.

        Args:
            instruction: evaluate instruction.
            is_fitted: whether the evaluated model is fitted to the training examples.

        Raises:
            BatchLimitError: if the evaluation covers too few examples.
            TrainerError: if the declared numbers of examples cannot be read.
        """
        counts, introduced = self._learner.example_counts(), self.introduced(instruction.run_id)
        splits = {instruction.split: introduced.get(instruction.split)}
        for split, most in (splits | ({Split.TRAIN: None} if is_fitted else {})).items():
            examples = counts[split] if most is None else min(counts[split], most)
            self._limits.check_evaluation(instruction, examples)

    def add_restore(self, run_id: bytes) -> None:
        """Count durably that the server was restored from a backup.

        Raises:
            TrainerError: if the file cannot be read or written.
        """
        if not self._signed.server_decides:
            self._answered.write(run_id, self._answered.read(run_id).after_restore())

    def add_evaluation(
        self, instruction: EvaluateInstruction, evaluation: Evaluation, personal: bool
    ) -> bytes:
        """Store an evaluation, count its losses once, and return it as a frame.

        Args:
            instruction: evaluate instruction.
            evaluation: answer to the instruction.
            personal: whether the personal comparison was requested.

        Raises:
            ScalarLimitError: if more losses than allowed would be sent.
            TrainerError: if the counts cannot be read or written.
        """
        token, frame, run_id = evaluation.token, evaluation.encode(), instruction.run_id
        losses = count_losses(instruction.split, evaluation.columns)
        question = _question_of(token, personal)
        self._budget.check(question, instruction.layout_hash, losses)
        self._budget.add(question, instruction.layout_hash, losses)
        answered = self._answered.read(run_id)
        is_counted = not self._signed.server_decides
        answered = answered.after_evaluation(instruction, token, personal, frame, is_counted)
        self._answered.write(run_id, answered)
        return frame


def _question_of(token: bytes, personal: bool) -> bytes:
    """Return the key under which the losses of an evaluation are counted.

    An instruction can request an evaluation and the personal comparison, which have different keys.
    """
    return token + b"personal" if personal else token
