"""Laws of the time model: more work never takes less time, and no time is infinite."""

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samara.devices.hardware.built_in_shapes import BUILT_IN
from samara.devices.hardware.memory_footprint import memory_footprint
from samara.devices.hardware.model_shape import model_shape
from samara.devices.hardware.profile import DeviceProfile, shipped_devices
from samara.devices.hardware.roofline import Grouping, Quantization, Workload, step_time
from samara.shared.protocol.directions import Differences

DEVICES = shipped_devices()
SHAPES = [model_shape(name) for name in BUILT_IN]
WORK = st.builds(
    Workload,
    sequence=st.integers(1, 2048),
    batch=st.integers(1, 64),
    queries=st.integers(1, 32),
    grouping=st.sampled_from(get_args(Grouping)),
    differences=st.sampled_from(get_args(Differences)),
    curvature=st.booleans(),
    quantization=st.sampled_from(get_args(Quantization)),
    top=st.integers(0, 22),
    rank=st.integers(1, 64),
    supervised=st.just(1) | st.just(0),
    tiled=st.booleans(),
)
GROWTH = st.sampled_from(["sequence", "batch", "queries", "rank"])


@settings(max_examples=150)
@given(st.sampled_from(SHAPES), st.sampled_from(DEVICES), WORK, GROWTH, st.integers(1, 8))
def test_more_work_takes_no_less(
    shape: Any, device: DeviceProfile, work: Workload, key: str, more: int
) -> None:
    larger = replace(work, **{key: getattr(work, key) + more})
    assert step_time(shape, device, larger).total >= step_time(shape, device, work).total * (
        1 - 1e-9
    )
    assert (
        memory_footprint(shape, device, larger).total >= memory_footprint(shape, device, work).total
    )


@settings(max_examples=100)
@given(st.sampled_from(SHAPES), st.sampled_from(DEVICES), WORK)
def test_time_is_between_physical_limits(shape: Any, device: DeviceProfile, work: Workload) -> None:
    time = step_time(shape, device, work)
    tokens = sum(rows * passes for rows, passes in work.passes) * work.sequence
    # Never faster than the processor on paper; the last block may run at fewer positions.
    inner = replace(work, supervised=0)
    operations = (
        2
        * tokens
        * sum(
            linear.weights
            for block in shape.blocks[work.first_adapted(shape) :]
            for linear in block
        )
    )
    peak = max(device.compute.fp16, device.compute.fp32)
    assert step_time(shape, device, inner).total >= operations / peak
    # Never slower than every example alone, unless only an example alone stays on the chip.
    if not device.memory.on_chip_bytes:
        alone = replace(work, batch=1, queries=1, grouping="sequential", supervised=0)
        assert (
            time.total <= step_time(shape, device, alone).total * work.batch * work.queries * 1.01
        )


@given(st.sampled_from(SHAPES), WORK, st.sampled_from(["batch", "queries"]))
def test_twice_the_work_takes_at_most_twice_as_long(shape: Any, work: Workload, key: str) -> None:
    device = next(device for device in DEVICES if device.name == "orin-nano-8gb")
    once = step_time(shape, device, work)
    twice = step_time(shape, device, replace(work, **{key: 2 * getattr(work, key)}))
    # Two halves of a tile of logits can become a whole one and a rest that costs as much as a half.
    rest = once.head if work.tiled else 0.0
    assert twice.total <= (2 * once.total + rest) * (1 + 1e-6)


@settings(max_examples=50)
@given(st.sampled_from(SHAPES), WORK)
def test_a_faster_device_is_faster(shape: Any, work: Workload) -> None:
    device = next(device for device in DEVICES if device.name == "orin-nano-8gb")
    times = [
        step_time(shape, device.with_power_mode(mode), work).total for mode in ("7W", "15W", "25W")
    ]
    assert times == sorted(times, reverse=True)
    quicker = device.model_copy(
        update={"memory": device.memory.model_copy(update={"bandwidth": 1e18})}
    )
    assert step_time(shape, quicker, work).total <= times[1]


def test_long_sequences_grow_at_most_with_their_square() -> None:
    device = next(device for device in DEVICES if device.name == "orin-nano-8gb")
    for shape in SHAPES:
        for sequence in (128, 512, 1024):
            short = step_time(shape, device, Workload(sequence=sequence)).total
            long = step_time(shape, device, Workload(sequence=2 * sequence)).total
            assert short < long < 4 * short
            assert long / short == pytest.approx(2, rel=0.5)
