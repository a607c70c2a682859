"""Losses for an objective that is a metric of decoded answers."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from samara.client.forward.grouping import split_by_grouping
from samara.client.forward.resident import ResidentForward
from samara.shared.model.perturbations import PerturbedAdapters
from samara.shared.model.scorers import Prompt
from samara.shared.tasks.kinds import GenerationTask
from samara.shared.tasks.objectives import minus_answer_metric


def answer_losses(
    forward: ResidentForward,
    task: GenerationTask,
    perturbations: PerturbedAdapters,
    prompts: Sequence[Prompt],
    accepted: Sequence[Sequence[str]],
    micro_batch: int = 0,
) -> NDArray[np.float32]:
    """Return the loss of each perturbation: the negated metric of the answers decoded under it.

    Args:
        forward: forward engine.
        task: task that defines the metric.
        perturbations: P perturbations of one client, each decoded separately.
        prompts: n prompts without answers.
        accepted: accepted answers of every prompt.
        micro_batch: maximum number of examples in a pass; 0 for no limit.

    Returns:
        float32 [P].
    """
    losses = np.empty(perturbations.count, np.float32)
    for indices, perturbation in split_by_grouping(perturbations, "sequential"):
        answers = forward.decode_answers(perturbation, prompts, micro_batch)
        losses[indices] = minus_answer_metric(task, [answers], accepted)
    return losses
