"""The owner's limits on a client's answers to the server."""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from math import floor

from samara.shared.errors import BatchLimitError, EvaluationLimitError, ScalarLimitError
from samara.shared.protocol.frames.evaluation import EvaluationColumn
from samara.shared.protocol.frames.instructions import EvaluateInstruction, Split, TrainInstruction

log = logging.getLogger("samara.client")

LIVE_LEAST_BATCH = 2
"""Default minimum batch size of a live client or phone. No step then uses a single example."""
UNTRAINED_COLUMNS = ("global", "zero-shot")
"""Columns of an evaluation whose losses do not depend on the client's training examples."""


@dataclass(frozen=True)
class AnswerLimits:
    """The owner's limits on a client's answers; by default nothing is limited.

    Attributes:
        scalar_limit: largest scalar ratio, ``data.scalar-limit``; 0 for no limit.
        least_batch: fewest examples that a step or an evaluation may use, ``data.least-batch``.
        scalars_per_example: maximum number of projected gradients in a round, per example of its
            smallest batch, ``data.scalars-per-example``; 0 for no limit.
        epsilon_limit: largest total ε of all noised reports, ``data.epsilon-limit``; 0 for no
            limit.
    """

    scalar_limit: float = 0.0
    least_batch: int = 1
    scalars_per_example: float = 0.0
    epsilon_limit: float = 0.0

    def check_step(self, instruction: TrainInstruction, examples: int, sent: int) -> None:
        """Check the batch size and the number of scalars of a train instruction.

        Args:
            instruction: train instruction.
            examples: number of the client's examples in the smallest batch of its steps.
            sent: number of projected gradients that the client has already sent in the round.

        Raises:
            BatchLimitError: if the smallest batch has fewer examples than `least_batch`.
            ScalarLimitError: if the round would exceed `scalars_per_example`.
        """
        if examples < self.least_batch:
            raise BatchLimitError(
                f"round {instruction.round} has steps on {examples} of this client's examples, "
                f"fewer than data.least-batch = {self.least_batch}. Lower data.least-batch if "
                "steps may use so few examples (docs/guides/privacy.md)",
                (examples, min(self.least_batch, 2**32 - 1)),
            )
        if not self.scalars_per_example:
            return
        left = max(0, floor(self.scalars_per_example * examples) - sent)
        if (asked := instruction.report_scalars) > left:
            raise ScalarLimitError(
                f"round {instruction.round} asks for {asked} scalars about {examples} examples, "
                f"but data.scalars-per-example = {self.scalars_per_example:g} allows only {left} "
                "more in this round. Raise this limit if the client may send more "
                "(docs/guides/privacy.md)",
                (min(asked, 2**32 - 1), min(left, 2**32 - 1)),
            )

    def check_evaluation(self, instruction: EvaluateInstruction, examples: int) -> None:
        """Check that an evaluation covers either no examples or at least `least_batch` examples.

        An evaluation of no examples reveals nothing.

        Args:
            instruction: evaluate instruction.
            examples: smallest number of examples on which any loss of the evaluation depends.

        Raises:
            BatchLimitError: if the evaluation covers some examples, but fewer than `least_batch`.
        """
        if 0 < examples < self.least_batch:
            raise BatchLimitError(
                f"round {instruction.round}: the evaluation on {instruction.split.name.lower()} "
                f"examples depends on {examples} of this client's examples, fewer than "
                f"data.least-batch = {self.least_batch}. Lower data.least-batch if the client may "
                "answer such evaluations (docs/guides/privacy.md)",
                (examples, min(self.least_batch, 2**32 - 1)),
            )


def warn_of_few_examples(examples: int, least_batch: int) -> None:
    """Log a warning if a client has fewer training examples than a step must use.

    Args:
        examples: number of the client's training examples.
        least_batch: fewest examples that a step may use.
    """
    if examples < least_batch:
        log.warning(
            "this client has %d training examples, fewer than data.least-batch = %d: the client "
            "refuses to train, and only evaluates (docs/guides/privacy.md)",
            examples,
            least_batch,
        )


def check_split(instruction: EvaluateInstruction) -> None:
    """Refuse an evaluation on the training examples.

    No server needs such an evaluation. From the losses at two states of its choice, a server could
    compute a projected gradient.

    Raises:
        EvaluationLimitError: if the instruction asks for the training examples.
    """
    if instruction.split is Split.TRAIN:
        raise EvaluationLimitError(
            f"round {instruction.round}: the server asks for an evaluation on the training "
            "examples, which every client refuses; evaluate on validation or test examples"
        )


def count_report_scalars(instruction: TrainInstruction) -> int:
    """Return the number of scalars in a report: projected gradients, mean loss and curvature."""
    return instruction.report_scalars + 1 + bool(instruction.curvature_every)


def count_losses(split: Split, columns: Collection[EvaluationColumn]) -> dict[Split, int]:
    """Return, for each split, the number of losses in an evaluation that depend on its examples.

    Every loss depends on the evaluated split. The loss of a model with a private part, or of a
    baseline that the client fitted, also depends on the training split.

    Args:
        split: the evaluated split.
        columns: columns of the evaluation.
    """
    fitted = [column for column in columns if column.name not in UNTRAINED_COLUMNS]
    return {split: len(columns)} | ({Split.TRAIN: len(fitted)} if fitted else {})
