"""One client's way through the steps of a round, whoever computes the losses: no model here."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from client.estimators.prge import Estimator, GradientEstimate, prge_estimator
from shared.directions import batch_order
from shared.errors import TrainingError
from shared.frames.instructions import CLUSTERING_TRACK, SeedPolicy, TrainInstruction
from shared.frames.report import Report
from shared.replay import CoefficientBlock, quantize
from shared.step_size import REACH


class LocalStepPlan:
    """What a client tries, step by step, and what it reports in the end.

    Args:
        instruction: of the round.
        client: index.
        labels: int64 [n], of the client's training examples.
        classes: how many labels the task has; 0 if labels mean nothing from row to row.
    """

    def __init__(
        self,
        instruction: TrainInstruction,
        client: int,
        labels: NDArray[np.int64],
        classes: int,
    ) -> None:
        self._asked, self._device = instruction, client
        self._labels, self._classes = labels, classes
        self._seeds = instruction.seeds(client)
        self._estimates: list[GradientEstimate] = []
        self._losses: list[float] = []
        self._energy = 0.0

    def estimator(self) -> Estimator:
        """Of the next step."""
        asked, step = self._asked, len(self._estimates)
        order = batch_order(asked.root, self._device, step, len(self._labels))
        if self._of_one_label:
            order = order[self._labels[order] == step % self._classes]
        return prge_estimator(
            self._seeds[step],
            order[: asked.batch] if len(order) else np.zeros(1, np.int64),
            asked.epsilon,
            asked.measures_curvature(step),
            asked.differences,
        )

    def taken(self, found: GradientEstimate) -> list[tuple[NDArray[np.uint64], CoefficientBlock]]:
        """What the next step adds to the state, −η·Σ clip(g)·z / q, in the ledger's arithmetic.

        The loss counts in the report as long as the client is near where the round began
        (`REACH`): farther out it tells nothing of the global model.

        Args:
            found: its estimator's end.

        Raises:
            TrainingError: if a loss is not finite.
        """
        asked, step = self._asked, len(self._estimates)
        if not (np.isfinite(found.mean_loss) and np.all(np.isfinite(found.gradients))):
            raise TrainingError(
                f"the loss is not finite at step {step + 1} of round {asked.round}; "
                "lower learning-rate or epsilon, or check the model's weights",
                (step + 1, 0),
            )
        if self._of_one_label:
            held = int(np.sum(self._labels == step % self._classes))
            share = np.float32(min(1.0, held / asked.batch))
            found = replace(found, gradients=share * found.gradients)
        self._estimates.append(found)
        if self._energy <= (REACH * asked.epsilon) ** 2:
            self._losses.append(found.mean_loss)
        coefficients = asked.coefficients(asked.clipped(found.gradients))
        self._energy += float(coefficients @ coefficients)
        return [(self._seeds[step], one_pass) for one_pass in quantize(coefficients)]

    @property
    def _of_one_label(self) -> bool:
        """Whether the labels take turns from step to step, as where clusters are sought.

        Otherwise a client's base rate would be the loudest thing that it says. Of a label with
        fewer examples than a batch the projected gradients count less, and without one nothing.
        """
        return self._asked.track == CLUSTERING_TRACK and self._classes > 1

    def report(self, token: bytes) -> Report:
        """Of all steps.

        Args:
            token: of the instruction.
        """
        gradients = np.stack([found.gradients for found in self._estimates])
        bends = [found.curvature for found in self._estimates if found.curvature is not None]
        pooled = self._asked.seed_policy is SeedPolicy.POOL
        return Report(
            token,
            self._device,
            len(self._labels),
            float(np.mean(self._losses)),
            self._asked.sums(gradients) if pooled else gradients,
            summed_steps=self._asked.steps if pooled else 0,
            curvature=float(np.mean(bends)) if bends else None,
        )
