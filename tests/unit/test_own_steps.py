"""What a client tries where clusters are sought."""

import numpy as np
from helpers import instruction_with

from client.training.local_step_plan import LocalStepPlan
from shared.frames.instructions import CLUSTERING_TRACK, SeedPolicy


def test_labels_take_turns_and_what_is_held_of_them_counts() -> None:
    """A step's examples have one label; a client says nothing of a label that it lacks."""
    asked = instruction_with(
        track=CLUSTERING_TRACK, seed_policy=SeedPolicy.SHARED, learning_rate=0.0, steps=4, batch=4
    )
    labels = np.array([0, 0, 0, 2, 2, 2, 2, 2])
    steps, told = LocalStepPlan(asked, 0, labels, classes=3), []
    for label in (0, 1, 2, 0):
        estimator = steps.estimator()
        trial = next(estimator)
        assert set(labels[trial.batch]) == {label} or label == 1
        try:
            estimator.send(np.arange(1.0, 2 * asked.queries + 1) ** 2)
        except StopIteration as ended:
            told.append(ended.value.gradients)
            steps.taken(ended.value)
    shares = np.array([0.75, 0, 1, 0.75], np.float32)
    reported = steps.report(bytes(8)).gradients
    np.testing.assert_array_equal(reported, shares[:, None] * np.stack(told))
