"""A client's local steps in a round, planned without a model: batches, directions and report.

The losses are computed elsewhere: by a model runtime, or by a phone's program.
"""

from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from samara.client.estimators.exact import exact_estimator
from samara.client.estimators.prge import (
    Estimator,
    EstimatorFunction,
    GradientEstimate,
    prge_estimator,
)
from samara.shared.errors import TrainingError
from samara.shared.extensions import extension
from samara.shared.protocol.directions import batch_order
from samara.shared.protocol.frames.instructions import (
    CLUSTERING_TRACK,
    SeedPolicy,
    TrainInstruction,
)
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.replay import CoefficientBlock, quantize
from samara.shared.protocol.step_size import REACH

_Progress = TypeVar("_Progress")


def has_batches_of_one_label(instruction: TrainInstruction, label_count: int) -> bool:
    """Return whether all examples of a batch have the same label, as in clustering rounds.

    The labels take turns. With mixed batches, the frequencies of the client's labels would dominate
    its projected gradients. If a label has fewer examples than a batch, its projected gradients are
    scaled down. Without examples of the label, they are zero.

    Args:
        instruction: instruction of the round.
        label_count: number of labels of the task; 0 if the meaning of labels differs between rows.
    """
    return instruction.track == CLUSTERING_TRACK and label_count > 1


def smallest_batch(
    instruction: TrainInstruction, labels: NDArray[np.int64], label_count: int
) -> int:
    """Return the number of a client's examples in the smallest batch of an instruction's steps.

    Steps for a label without examples do not count, because they report zeros and no loss.

    Args:
        instruction: instruction of the round.
        labels: int64 [n], labels of the client's training examples.
        label_count: number of labels of the task; 0 if the meaning of labels differs between rows.
    """
    available = np.array([len(labels)])
    if has_batches_of_one_label(instruction, label_count):
        of_label = np.bincount(labels, minlength=label_count)[: instruction.steps]
        available = of_label[of_label > 0] if of_label.any() else available
    return min(instruction.batch, int(available.min()))


class LocalStepPlan:
    """A client's local steps in a round: the estimator and update of each step, and the report.

    Args:
        instruction: instruction of the round.
        client: client index.
        labels: int64 [n], labels of the client's training examples.
        label_count: number of labels of the task; 0 if the meaning of labels differs between rows.
    """

    def __init__(
        self,
        instruction: TrainInstruction,
        client: int,
        labels: NDArray[np.int64],
        label_count: int,
    ) -> None:
        self._instruction, self._client = instruction, client
        self._labels, self._label_count = labels, label_count
        self._seeds = instruction.seeds(client)
        of_one_label = has_batches_of_one_label(instruction, label_count)
        self._has_batches_of_one_label = of_one_label
        self._has_whole_batches = not of_one_label and len(labels) <= instruction.batch
        self._estimates: list[GradientEstimate] = []
        self._losses: list[float] = []
        self._energy = 0.0

    @property
    def is_profiled(self) -> bool:
        """True if the losses are profiled."""
        return self._instruction.is_profiled

    @property
    def steps_taken(self) -> int:
        """Number of finished steps."""
        return len(self._estimates)

    def next_estimator(self, gradients: str = "differences") -> Estimator:
        """Return the estimator of the next step, with the step's directions and batch.

        Args:
            gradients: value of the setting `gradients`.

        Raises:
            ConfigError: if this machine lacks the estimator.
        """
        instruction, step = self._instruction, len(self._estimates)
        batch = self._next_batch()
        epsilon, curvature = instruction.epsilon, instruction.measures_curvature(step)
        seeds = self._seeds[step]
        if gradients == "differences":
            return prge_estimator(seeds, batch, epsilon, curvature, instruction.differences)
        if gradients == "exact":
            return exact_estimator(seeds, batch, epsilon, curvature)
        return _with_curvature(extension("estimator", gradients), seeds, batch, epsilon, curvature)

    def _next_batch(self) -> NDArray[np.int64]:
        """Return the indices of the next step's examples, int64.

        If the step's label has no examples, the only index is 0.
        """
        instruction, step = self._instruction, len(self._estimates)
        if self._has_whole_batches and len(self._labels):
            return np.arange(len(self._labels))
        order = batch_order(instruction.root, self._client, step, len(self._labels))
        if self._has_batches_of_one_label:
            order = order[self._labels[order] == step % self._label_count]
        return order[: instruction.batch] if len(order) else np.zeros(1, np.int64)

    def finish_step(
        self, estimate: GradientEstimate
    ) -> list[tuple[NDArray[np.uint64], CoefficientBlock]]:
        """Record the estimate of the current step, and return the step's update.

        The update is −η·Σ clip(g)·z / q in the ledger's arithmetic.

        The reported loss estimates the loss at the round's start state. If every batch holds all of
        the client's examples, the first step's loss is reported. Otherwise the first step covers
        few examples, so the mean includes losses of later steps while the client is near the start
        (`REACH`).

        Args:
            estimate: result of the step's estimator.

        Returns:
            Seeds and coefficient blocks, for `samara.shared.protocol.replay.replay`.

        Raises:
            TrainingError: if a loss is not finite.
        """
        instruction, step = self._instruction, len(self._estimates)
        if not (np.isfinite(estimate.mean_loss) and np.all(np.isfinite(estimate.gradients))):
            raise TrainingError(
                f"the loss is not finite at step {step + 1} of round {instruction.round}; "
                "lower learning-rate or epsilon, or check the model's weights",
                (step + 1, 0),
            )
        available = len(self._labels)
        if self._has_batches_of_one_label:
            available = int(np.sum(self._labels == step % self._label_count))
            share = np.float32(min(1.0, available / instruction.batch))
            estimate = replace(estimate, gradients=share * estimate.gradients)
        self._estimates.append(estimate)
        is_near = self._energy <= (REACH * instruction.epsilon) ** 2
        if available and is_near and not (self._losses and self._has_whole_batches):
            self._losses.append(estimate.mean_loss)
        coefficients = instruction.coefficients(instruction.clipped(estimate.gradients))
        self._energy += float(coefficients @ coefficients)
        return [(self._seeds[step], block) for block in quantize(coefficients)]

    def report(self, token: bytes) -> Report:
        """Return the report of all steps.

        Args:
            token: token of the instruction, 8 bytes.
        """
        gradients = np.stack([estimate.gradients for estimate in self._estimates])
        curvatures = [
            estimate.curvature for estimate in self._estimates if estimate.curvature is not None
        ]
        pooled = self._instruction.seed_policy is SeedPolicy.POOL
        return Report(
            token,
            self._client,
            len(self._labels),
            float(np.mean(self._losses)) if self._losses else 0.0,
            self._instruction.sums(gradients) if pooled else gradients,
            summed_steps=self._instruction.steps if pooled else 0,
            curvature=float(np.mean(curvatures)) if curvatures else None,
        )


def _with_curvature(
    function: EstimatorFunction,
    seeds: NDArray[np.uint64],
    batch: NDArray[np.int64],
    epsilon: float,
    curvature: bool,
) -> Estimator:
    """Run a registered estimator; if requested, measure the curvature by central differences."""
    estimate = yield from function(seeds, batch, epsilon)
    gradients = np.asarray(estimate.gradients, np.float32)
    if gradients.shape != seeds.shape:
        raise TrainingError(
            f"the estimator returns projected gradients of shape {gradients.shape}; it must return "
            f"one number for each of the {len(seeds)} directions"
        )
    measured = None
    if curvature:
        measured = (yield from prge_estimator(seeds, batch, epsilon, True)).curvature
    return GradientEstimate(gradients, float(estimate.mean_loss), measured)


class InterruptedSteps(Generic[_Progress]):
    """The finished steps of a client's interrupted round, kept in memory until the round continues.

    An exception between two forward passes interrupts a round. If the same round starts again with
    the same examples, its finished steps are not repeated.
    """

    def __init__(self) -> None:
        self._token, self._examples = b"", object()
        self._progress: _Progress | None = None

    def resume(self, token: bytes, examples: object, beginning: _Progress) -> _Progress:
        """Return the progress of a round that was interrupted, or `beginning` for another round.

        Args:
            token: token of the round's instruction, 8 bytes.
            examples: examples of the round, compared by object identity.
            beginning: progress at the round's start, which the round's steps change.
        """
        if self._progress is None or self._token != token or self._examples is not examples:
            self._token, self._examples, self._progress = token, examples, beginning
        return self._progress
