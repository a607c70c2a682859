"""The file of a start: exact numbers, within limits and checked."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samara.shared.errors import ModelError, SamaraError
from samara.shared.model.perturbations import WeightMap
from samara.shared.protocol.layout import ADAPTER_GROUP, READOUT_GROUP, Layout, Tensor
from samara.shared.protocol.replay import zero_state
from samara.shared.protocol.start import START_LIMIT, Start

LAYOUT = Layout((Tensor("first", 3, 1, ADAPTER_GROUP),), 1, 4.0, 7, "gaussian")
MODEL = bytes(range(32))


def start_of(values: list[int]) -> Start:
    return Start(MODEL, LAYOUT.weights_hash, np.array(values, np.int64))


@given(st.lists(st.floats(-1000, 1000, width=32), min_size=3, max_size=3))
def test_weights_survive_but_for_the_last_unit(weights: list[float]) -> None:
    exact = np.array(weights, np.float32)
    start = Start.decode(Start.from_weights(exact, LAYOUT, MODEL, "top:1").encode())
    start.check_origin(LAYOUT, MODEL)
    found = WeightMap(start).weights(zero_state(3))
    large = np.abs(exact) >= 2.0**-28
    np.testing.assert_array_equal(found[large], exact[large])
    np.testing.assert_allclose(found, exact, rtol=0, atol=2.0**-52)


@pytest.mark.parametrize("weight", [np.inf, np.nan, 1024.0, -1024.0])
def test_a_weight_out_of_range_is_refused(weight: float) -> None:
    with pytest.raises(ModelError, match="not finite, or not below 1,024"):
        Start.from_weights(np.array([0, weight, 0], np.float32), LAYOUT, MODEL, "top:1")


@pytest.mark.parametrize("value", [START_LIMIT, -START_LIMIT])
def test_a_file_with_a_number_out_of_range_is_refused(value: int) -> None:
    with pytest.raises(ModelError, match="a number out of its range"):
        Start.decode(start_of([0, value, 0]).encode())


@given(st.data())
def test_damaged_files_raise_errors_of_ours_or_are_other_starts(data: st.DataObject) -> None:
    content = bytearray(start_of([1, -2, 3]).encode())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        start = Start.decode(bytes(content))
    except SamaraError:
        return
    assert start.sha256 != start_of([1, -2, 3]).sha256 or start.encode() != bytes(content)


@pytest.mark.parametrize(
    "start",
    [
        start_of([1, -2, 3]),
        Start.from_state(np.array([1, -2, 3], np.int64), LAYOUT, MODEL, "top:1"),
    ],
    ids=["without layout", "with layout"],
)
def test_both_formats_come_back_as_they_were(start: Start) -> None:
    again = Start.decode(start.encode())
    assert (again.layout, again.layers) == (start.layout, start.layers)
    assert (again.model_id, again.weights_hash) == (MODEL, LAYOUT.weights_hash)
    assert again.encode() == start.encode()
    again.check_origin(LAYOUT, MODEL)


@given(st.lists(st.integers(-(2**60), 2**60), min_size=6, max_size=6))
def test_the_start_of_a_state_is_the_exact_sum(numbers: list[int]) -> None:
    before, state = start_of(numbers[:3]), np.array(numbers[3:], np.int64)
    if max(abs(int(a) + int(b)) for a, b in zip(numbers[:3], numbers[3:], strict=True)) >= 2**61:
        with pytest.raises(ModelError, match="not below 1,024"):
            Start.from_state(state, LAYOUT, MODEL, "top:1", before)
        return
    after = Start.from_state(state, LAYOUT, MODEL, "top:1", before)
    assert after.values.tolist() == [a + b for a, b in zip(numbers[:3], numbers[3:], strict=True)]
    theirs = WeightMap(before).weights(state)
    np.testing.assert_array_equal(WeightMap(after).weights(zero_state(3)), theirs)


def test_a_state_out_of_range_is_no_start() -> None:
    large = np.array([0, START_LIMIT, 0], np.int64)
    with pytest.raises(ModelError, match="not below 1,024"):
        Start.from_state(large, LAYOUT, MODEL, "top:1")
    with pytest.raises(ModelError, match="not below 1,024"):
        Start.from_state(large, LAYOUT, MODEL, "top:1", start_of([1, 1, 1]))


def test_a_start_of_another_adapter_says_what_differs() -> None:
    start = Start.from_state(zero_state(3), LAYOUT, MODEL, "top:1")
    with pytest.raises(ModelError, match=r"adapter\.rank is 1 in the start and 2 here; set"):
        start.check_origin(replace(LAYOUT, rank=2), MODEL)
    readout = Tensor("readout", 1, 3, READOUT_GROUP)
    with pytest.raises(ModelError, match=r"is top:1 in the start.*first, here readout"):
        start.check_origin(replace(LAYOUT, tensors=(readout,)), MODEL)
    with pytest.raises(ModelError, match=r"but the run has .{12}; train a start"):
        start_of([1, 2, 3]).check_origin(replace(LAYOUT, rank=2), MODEL)


def test_a_start_of_another_size_is_refused() -> None:
    with pytest.raises(
        ModelError, match="the file has 2 numbers, but the adapter of the run has 3"
    ):
        start_of([1, 2]).check_origin(LAYOUT, MODEL)
