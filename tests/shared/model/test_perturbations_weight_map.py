"""The map from a state to weights: one rounding, and a start that is added as integers."""

import numpy as np
import pytest

from samara.shared.errors import ReplayError
from samara.shared.model.perturbations import WeightMap
from samara.shared.protocol.replay import to_float32
from samara.shared.protocol.start import Start


def start_of(values: list[int]) -> Start:
    return Start(bytes(32), bytes(32), np.array(values, np.int64))


def test_without_a_start_the_weights_are_the_state() -> None:
    state = np.array([0, 1, -(2**51), 3 * 2**40], np.int64)
    assert WeightMap().weights(state).tobytes() == to_float32(state).tobytes()


def test_a_start_is_added_before_the_one_rounding() -> None:
    start, state = start_of([2**51 + 1]), np.array([-(2**51)], np.int64)
    assert WeightMap(start).weights(state) == np.float32(2.0**-51)  # floats would give 0


def test_a_sum_that_would_wrap_is_refused() -> None:
    with pytest.raises(ReplayError, match="initial weights cannot be added to the state"):
        WeightMap(start_of([0])).weights(np.array([2**62], np.int64))
