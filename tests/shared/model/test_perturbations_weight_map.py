"""The map from a state to weights: one rounding, and a start that is added as integers."""

import numpy as np
import pytest
import torch
from accelerator import pretended_gpus

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


@pytest.mark.parametrize("values", [None, [5, -(2**60), 2**51 + 1]])
def test_weights_are_computed_on_the_gpu_that_holds_the_state(values: list[int] | None) -> None:
    state = np.array([2**40 + 1, 3, -(2**51)], np.int64)
    start = None if values is None else start_of(values)
    with pretended_gpus() as gpus:
        weight_map = WeightMap(start, torch_device=torch.device("cuda:1"))
        there = torch.from_numpy(state).to("cuda:1")
        weight_map.center(there)
        gpus.copied.clear()
        center = weight_map.center(there)
        assert center.device == there.device
        assert max(gpus.copied, default=0) < state.nbytes
        found = center.cpu().numpy()
    assert found.tobytes() == WeightMap(start).weights(state).tobytes()
