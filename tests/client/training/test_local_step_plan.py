"""The plan of local steps: the batches of clustering rounds, and the reported loss."""

import numpy as np
import pytest
from helpers import instruction_with

from samara.client.estimators.prge import GradientEstimate
from samara.client.training.local_step_plan import LocalStepPlan
from samara.shared.protocol.frames.instructions import CLUSTERING_TRACK, SeedPolicy


def test_labels_take_turns_and_count_by_their_share_of_the_batch() -> None:
    """A step's batch has one label.

    If the client lacks this label, the step's gradients are zero.
    """
    instruction = instruction_with(
        track=CLUSTERING_TRACK, seed_policy=SeedPolicy.SHARED, learning_rate=0.0, steps=4, batch=4
    )
    labels = np.array([0, 0, 0, 2, 2, 2, 2, 2])
    plan, gradients = LocalStepPlan(instruction, 0, labels, label_count=3), []
    for label in (0, 1, 2, 0):
        estimator = plan.next_estimator()
        trial = next(estimator)
        assert set(labels[trial.batch]) == {label} or label == 1
        try:
            estimator.send(np.arange(1.0, 2 * instruction.queries + 1) ** 2)
        except StopIteration as ended:
            gradients.append(ended.value.gradients)
            plan.finish_step(ended.value)
    shares = np.array([0.75, 0, 1, 0.75], np.float32)
    reported = plan.report(bytes(8)).gradients
    np.testing.assert_array_equal(reported, shares[:, None] * np.stack(gradients))


@pytest.mark.parametrize(
    ("batch", "reported"),
    [(5, 0.7), (100, 0.7), (4, 0.5)],
    ids=["all examples", "more than all", "a part of the examples"],
)
def test_the_reported_loss_is_that_of_the_start(batch: int, reported: float) -> None:
    """With all examples in a step, the first step's loss is reported; otherwise the mean loss."""
    instruction = instruction_with(learning_rate=0.0, steps=3, batch=batch)
    plan = LocalStepPlan(instruction, 0, np.array([0, 1, 0, 1, 1]), label_count=2)
    for loss in (0.7, 0.5, 0.3):
        plan.finish_step(GradientEstimate(np.ones(instruction.queries, np.float32), loss))
    assert plan.report(bytes(8)).mean_loss == pytest.approx(reported)


@pytest.mark.parametrize(("batch", "is_drawn"), [(5, False), (100, False), (4, True)])
def test_a_batch_of_all_examples_has_them_in_their_order(batch: int, is_drawn: bool) -> None:
    instruction = instruction_with(steps=8, batch=batch)
    plan = LocalStepPlan(instruction, 0, np.array([0, 1, 0, 1, 1]), label_count=2)
    batches = []
    for _ in range(instruction.steps):
        batches.append(next(plan.next_estimator()).batch.tolist())
        plan.finish_step(GradientEstimate(np.ones(instruction.queries, np.float32), 0.5))
    assert all(len(set(rows)) == min(batch, 5) for rows in batches)
    assert any(rows != sorted(rows) for rows in batches) == is_drawn
