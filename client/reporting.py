"""What a client's local steps come to, whoever computes them: no model is touched here."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from client.estimators.prge import Estimate
from shared.frames import Report, SeedPolicy, TrainInstruction


def report_of(
    instruction: TrainInstruction,
    token: bytes,
    device: int,
    examples: int,
    estimates: Sequence[Estimate],
    losses: Sequence[float],
) -> Report:
    """The report of a round.

    Args:
        instruction: of the round.
        token: of the instruction.
        device: index.
        examples: training examples that the device holds.
        estimates: one of each local step.
        losses: of the steps that count for the mean loss; at least one.
    """
    gradients = np.stack([result.gradients for result in estimates])
    bends = [result.curvature for result in estimates if result.curvature is not None]
    pooled = instruction.seed_policy is SeedPolicy.POOL
    return Report(
        token,
        device,
        examples,
        float(np.mean(losses)),
        instruction.sums(gradients) if pooled else gradients,
        summed_steps=instruction.steps if pooled else 0,
        curvature=float(np.mean(bends)) if bends else None,
    )


def label_by_label(order: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """An order in which the labels take turns, so that a batch tells nothing of how common each is.

    Args:
        order: int64 [n], places of all examples; those of one label keep it among themselves.
        labels: int64 [n], of the examples by place.
    """
    turns = np.empty(len(order), np.int64)
    for label in np.unique(labels):
        own = labels[order] == label
        turns[own] = np.arange(own.sum())
    return order[np.argsort(turns, kind="stable")]
