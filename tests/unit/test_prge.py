"""The estimate of P-RGE: which losses it asks for, and what it makes of them."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from client.estimators.prge import Trial, carried_out, estimate

SEEDS = np.array([5, 2**63, 7, 11], np.uint64)
BATCH = np.array([3, 1])
EPSILON = 0.25
SLOPES, BENDS = np.array([1.5, -2.0, 0.0, 0.5]), np.array([4.0, 0.0, 2.0, -6.0])
CENTRE = 3.0


def asked(trials: list[Trial]) -> Callable[[Trial], NDArray[np.float64]]:
    """A loss that is a parabola along every direction; what is asked is noted."""

    def losses_of(trial: Trial) -> NDArray[np.float64]:
        trials.append(trial)
        np.testing.assert_array_equal(trial.batch, BATCH)
        if not len(trial.seeds):
            return np.array([CENTRE])
        np.testing.assert_array_equal(trial.seeds, SEEDS)
        steps = trial.epsilon * np.array(trial.signs)[:, None]
        return (CENTRE + steps * SLOPES + 0.5 * steps**2 * BENDS).ravel()

    return losses_of


def points(trials: list[Trial]) -> int:
    return sum(len(trial.signs) * len(trial.seeds) or 1 for trial in trials)


def test_central_differences_are_the_slopes_of_parabolas() -> None:
    trials: list[Trial] = []
    found = carried_out(estimate(SEEDS, BATCH, EPSILON), asked(trials))
    np.testing.assert_array_equal(found.gradients, SLOPES.astype(np.float32))
    assert points(trials) == 2 * len(SEEDS)
    assert found.curvature is None


def test_forward_differences_share_the_centre_and_err_by_the_curvature() -> None:
    trials: list[Trial] = []
    found = carried_out(estimate(SEEDS, BATCH, EPSILON, differences="forward"), asked(trials))
    np.testing.assert_array_equal(found.gradients, (SLOPES + EPSILON / 2 * BENDS).astype("f4"))
    assert found.gradients.dtype == np.float32
    assert points(trials) == len(SEEDS) + 1
    assert (found.mean_loss, found.curvature) == (CENTRE, None)


@pytest.mark.parametrize("differences", ["central", "forward"])
def test_curvature_takes_both_sides_and_the_centre(differences: str) -> None:
    trials: list[Trial] = []
    estimator = estimate(SEEDS, BATCH, EPSILON, True, differences)  # type: ignore[arg-type]
    found = carried_out(estimator, asked(trials))
    np.testing.assert_array_equal(found.gradients, SLOPES.astype(np.float32))
    assert points(trials) == 2 * len(SEEDS) + 1
    assert found.curvature == BENDS.mean()
