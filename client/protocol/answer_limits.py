"""The limits that an owner sets on what a client answers, whatever the server asks."""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from math import floor

from samara.shared.errors import BatchLimitError, EvaluationLimitError, ScalarLimitError
from samara.shared.frames.evaluation import EvaluationColumn
from samara.shared.frames.instructions import EvaluateInstruction, Split, TrainInstruction

log = logging.getLogger("samara.client")

LIVE_LEAST_BATCH = 2
"""The least batch of a live client or phone whose owner sets none: no step is about one example."""
UNTRAINED_COLUMNS = ("global", "zero-shot")
"""The columns of an evaluation that do not depend on the client's training examples."""


@dataclass(frozen=True)
class AnswerLimits:
    """An owner's limits; the defaults limit nothing.

    Attributes:
        scalar_limit: largest scalar ratio, ``data.scalar-limit``; 0 for none.
        least_batch: fewest examples that a step or an evaluation may use, ``data.least-batch``.
        scalars_per_example: most projected gradients in a round, per example of its smallest batch,
            ``data.scalars-per-example``; 0 for no limit.
        epsilon_limit: largest ε of all reports with noise together, ``data.epsilon-limit``; 0 for
            none.
    """

    scalar_limit: float = 0.0
    least_batch: int = 1
    scalars_per_example: float = 0.0
    epsilon_limit: float = 0.0

    def check_step(self, instruction: TrainInstruction, examples: int, sent: int) -> None:
        """Raise an error if an instruction asks too much about too few examples.

        Args:
            instruction: train instruction.
            examples: number of the client's examples in the smallest batch of its steps.
            sent: projected gradients that the client has sent in the instruction's round so far.

        Raises:
            BatchLimitError: if a batch is smaller than the limit.
            ScalarLimitError: if the round would have more scalars per example than the limit.
        """
        if examples < self.least_batch:
            raise BatchLimitError(
                f"round {instruction.round} has steps on {examples} of this client's examples, and "
                f"data.least-batch = {self.least_batch} allows none on fewer than that. Lower it "
                "if such steps may be taken (docs/guides/privacy.md)",
                (examples, min(self.least_batch, 2**32 - 1)),
            )
        if not self.scalars_per_example:
            return
        left = max(0, floor(self.scalars_per_example * examples) - sent)
        if (asked := instruction.report_scalars) > left:
            raise ScalarLimitError(
                f"round {instruction.round} asks for {asked} scalars about {examples} examples, "
                f"and data.scalars-per-example = {self.scalars_per_example:g} leaves {left} in "
                "this round. Raise the limit if more may be sent (docs/guides/privacy.md)",
                (min(asked, 2**32 - 1), min(left, 2**32 - 1)),
            )

    def check_evaluation(self, instruction: EvaluateInstruction, examples: int) -> None:
        """Raise an error if an evaluation tells of too few examples; none tell nothing.

        Args:
            instruction: evaluate instruction.
            examples: the fewest examples that a loss of the evaluation depends on.

        Raises:
            BatchLimitError: if they are fewer than the limit.
        """
        if 0 < examples < self.least_batch:
            raise BatchLimitError(
                f"round {instruction.round}: the evaluation on {instruction.split.name.lower()} "
                f"examples would tell of {examples} of this client's examples, and "
                f"data.least-batch = {self.least_batch} allows none on fewer than that. Lower it "
                "if such evaluations may be sent (docs/guides/privacy.md)",
                (examples, min(self.least_batch, 2**32 - 1)),
            )


def warn_of_few_examples(examples: int, least_batch: int) -> None:
    """Log a warning if a client has fewer training examples than any of its steps may use.

    Args:
        examples: number of the client's training examples.
        least_batch: fewest examples that a step may use.
    """
    if examples < least_batch:
        log.warning(
            "this client has %d training examples, and data.least-batch = %d allows no step on so "
            "few: it refuses to train, and evaluates only (docs/guides/privacy.md)",
            examples,
            least_batch,
        )


def check_split(instruction: EvaluateInstruction) -> None:
    """Raise an error if an instruction asks for an evaluation on the training examples.

    No server needs one. At states of the server's choice its loss would be a projected gradient.

    Raises:
        EvaluationLimitError: if it does.
    """
    if instruction.split is Split.TRAIN:
        raise EvaluationLimitError(
            f"round {instruction.round}: the server asks for an evaluation on the training "
            "examples, which no client makes; a sound server asks for validation and test"
        )


def count_report_scalars(instruction: TrainInstruction) -> int:
    """Return how many scalars a report holds: projected gradients, mean loss and curvature."""
    return instruction.report_scalars + 1 + bool(instruction.curvature_every)


def count_losses(split: Split, columns: Collection[EvaluationColumn]) -> dict[Split, int]:
    """Return how many losses of an evaluation are about the examples of each split.

    Every loss is about the examples that were evaluated. That of a model with a private part, or of
    a baseline that the client fitted, is about its training examples too.

    Args:
        split: the evaluated split.
        columns: columns of the evaluation.
    """
    fitted = [column for column in columns if column.name not in UNTRAINED_COLUMNS]
    return {split: len(columns)} | ({Split.TRAIN: len(fitted)} if fitted else {})
