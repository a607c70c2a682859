"""The order of transfers and updates behind the backward pass, on a virtual clock."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samara.client.offload.iteration_time import layerwise_iteration, zero_offload_iteration
from samara.client.offload.service_order import Order, ServiceOrder, Stage
from samara.client.offload.simulated_schedule import LayerSeconds, simulate_schedule, total_seconds
from samara.client.offload.timeline import ACCELERATOR, HOST, LANES, TO_DEVICE, TO_HOST, Interval

SECONDS = st.integers(1, 1_000).map(float)
LAYERS = st.lists(
    st.builds(LayerSeconds, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS),
    min_size=1,
    max_size=12,
)
ORDERS = st.sampled_from(["layer-wise", "zero"])
STEPS = 3


def only(intervals: list[Interval], lane: str) -> list[Interval]:
    return sorted((each for each in intervals if each.lane == lane), key=lambda each: each.start)


def test_deep_layers_are_served_in_turn_and_shallow_ones_overtake() -> None:
    order = ServiceOrder(6, "layer-wise")
    order.transition = 3
    for layer in (5, 4, 3, 2, 1):
        order.submit(layer)
    assert [order.take(Stage.OFFLOAD) for _ in range(6)] == [1, 2, 5, 4, 3, None]


def test_a_layer_passes_every_stage_and_its_forward_waits_for_it_alone() -> None:
    order = ServiceOrder(2, "layer-wise")
    order.submit(1)
    order.submit(0)
    for stage in Stage:
        assert not order.may_forward(1)
        assert order.take(stage) == 1
        assert order.take(Stage.UPDATE) is None
        order.finish(stage, 1)
    assert order.may_forward(1)
    assert not order.may_forward(0)
    assert not order.idle


def test_zero_offload_updates_when_all_gradients_are_on_the_host() -> None:
    order = ServiceOrder(2, "zero")
    order.submit(1)
    assert order.take(Stage.OFFLOAD) == 1
    order.finish(Stage.OFFLOAD, 1)
    assert order.take(Stage.UPDATE) is None
    order.submit(0)
    assert order.take(Stage.UPDATE) is None
    assert order.take(Stage.OFFLOAD) == 0
    order.finish(Stage.OFFLOAD, 0)
    assert order.take(Stage.UPDATE) == 1
    order.finish(Stage.UPDATE, 1)
    assert order.take(Stage.UPLOAD) == 1
    order.finish(Stage.UPLOAD, 1)
    assert not order.may_forward(1)


def test_layers_without_gradients_do_not_hold_zero_offload_up() -> None:
    order = ServiceOrder(3, "zero")
    order.submit(1)
    assert order.take(Stage.OFFLOAD) == 1
    order.finish(Stage.OFFLOAD, 1)
    assert order.take(Stage.UPDATE) is None
    order.end_pass()
    assert order.take(Stage.UPDATE) == 1


@pytest.mark.parametrize("order", ["layer-wise", "zero"])
def test_gradients_that_are_only_added_do_not_return(order: Order) -> None:
    service = ServiceOrder(1, order)
    service.submit(0)
    for stage in (Stage.OFFLOAD, Stage.UPDATE):
        assert service.take(stage) == 0
        service.finish(stage, 0, returns=False)
    assert service.take(Stage.UPLOAD) is None
    assert service.idle


def test_a_layer_is_submitted_once() -> None:
    order = ServiceOrder(1, "layer-wise")
    order.submit(0)
    with pytest.raises(ValueError, match="layer 0"):
        order.submit(0)


@given(LAYERS, ORDERS, st.integers(0, 12))
def test_every_layer_is_served_once_a_step_and_no_lane_does_two_things_at_once(
    layers: list[LayerSeconds], order: Order, transition: int
) -> None:
    intervals = simulate_schedule(layers, order, STEPS, transition).intervals
    for lane in LANES:
        busy = only(intervals, lane)
        assert len(busy) == STEPS * len(layers) * (3 if lane == ACCELERATOR else 1)
        assert all(before.end <= after.start for before, after in pairwise(busy))


@given(LAYERS, ORDERS, st.integers(0, 12))
def test_no_stage_begins_before_the_one_it_needs_and_no_weights_are_stale(
    layers: list[LayerSeconds], order: Order, transition: int
) -> None:
    intervals = simulate_schedule(layers, order, STEPS, transition).intervals
    for layer in range(len(layers)):
        mine = {
            work: sorted(
                (each for each in intervals if each.work == work and each.layer == layer),
                key=lambda each: each.start,
            )
            for work in ("forward", "backward", "offload", "update", "upload", "apply")
        }
        for step in range(STEPS):
            way = [mine[work][step] for work in mine]
            assert all(before.end <= after.start for before, after in pairwise(way))
            if step:
                assert mine["apply"][step - 1].end <= mine["forward"][step].start


@given(LAYERS)
def test_zero_offload_keeps_its_barriers(layers: list[LayerSeconds]) -> None:
    intervals = simulate_schedule(layers, "zero", 1).intervals
    gradients = max(each.end for each in only(intervals, TO_HOST))
    assert gradients <= min(each.start for each in only(intervals, HOST))


@given(LAYERS)
def test_a_step_takes_no_less_than_the_busiest_lane(layers: list[LayerSeconds]) -> None:
    total = total_seconds(layers)
    end = max(each.end for each in simulate_schedule(layers, "layer-wise", STEPS).intervals)
    compute = total.compute + sum(layer.apply for layer in layers)
    assert end >= STEPS * max(compute, total.offload, total.update, total.upload)
    sequential = STEPS * (compute + total.offload + total.update + total.upload)
    assert end <= sequential


@pytest.mark.parametrize(
    ("order", "offload", "update", "above"),
    [
        ("layer-wise", 0.1, 0.1, 0.01),
        ("layer-wise", 2.0, 2.5, 0.15),
        ("layer-wise", 3.5, 0.5, 0.25),
        ("layer-wise", 0.5, 7.0, 0.15),
        ("zero", 0.1, 0.1, 0.05),
        ("zero", 3.5, 0.5, 0.05),
        ("zero", 2.8, 5.8, 0.05),
    ],
)
def test_a_step_of_many_equal_layers_against_the_papers_formula(
    order: Order, offload: float, update: float, above: float
) -> None:
    """The formula ignores the filling and emptying of the pipeline, so it is a lower bound."""
    layers = [LayerSeconds(1.0, 2.0, offload, update, offload)] * 64
    formula = layerwise_iteration if order == "layer-wise" else zero_offload_iteration
    steps = 40
    end = max(each.end for each in simulate_schedule(layers, order, steps).intervals)
    expected = formula(total_seconds(layers))
    assert 0.999 * expected <= end / steps <= (1 + above) * expected


def test_overtaking_lets_the_next_step_begin_earlier() -> None:
    layers = [LayerSeconds(1.0, 2.0, 0.5, 3.0, 0.5)] * 16

    def first_forward_of_the_second_step(transition: int | None) -> float:
        intervals = simulate_schedule(layers, "layer-wise", 2, transition).intervals
        starts = (each.start for each in intervals if each.work == "forward" and each.layer == 0)
        return sorted(starts)[1]

    assert first_forward_of_the_second_step(None) < first_forward_of_the_second_step(0)


def test_the_lanes_are_named_once() -> None:
    assert LANES == (ACCELERATOR, TO_HOST, HOST, TO_DEVICE)
