"""Seeds, pools and clips that follow from an instruction."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import instruction_with, report_to

from samara.shared.errors import FrameError
from samara.shared.protocol.directions import pool_seeds
from samara.shared.protocol.frames.instructions import INTERCEPT_TRACK, SeedPolicy, TrainInstruction
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.wire import Kind, pack, unpack

ASKED = instruction_with()
POOL = instruction_with(seed_policy=SeedPolicy.POOL)


def test_seeds_are_shared_or_each_device_has_its_own() -> None:
    shared = instruction_with(seed_policy=SeedPolicy.SHARED)
    np.testing.assert_array_equal(shared.seeds(0), shared.seeds(5))
    own = [ASKED.seeds(client) for client in (0, 5)]
    assert len({*shared.seeds(0).flat, *own[0].flat, *own[1].flat}) == 3 * 8


def test_seeds_of_a_pool_are_each_devices_own_order_of_the_same_few() -> None:
    asked = instruction_with(seed_policy=SeedPolicy.POOL, steps=3)
    whole = pool_seeds(asked.pool_root, np.arange(asked.pool_size, dtype=np.uint32))
    for client in (0, 5):
        seeds, indices = asked.seeds(client), asked.pool_indices(client)
        np.testing.assert_array_equal(seeds, whole[indices])
        assert set(seeds[:2].flat) == set(whole.tolist())
        np.testing.assert_array_equal(indices.flat[6:], indices.flat[:6])
    assert np.any(asked.seeds(0) != asked.seeds(5))


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_a_pool_has_one_sum_per_used_seed(steps: int) -> None:
    asked = instruction_with(seed_policy=SeedPolicy.POOL, steps=4, clip=1.5)
    gradients = np.random.default_rng(0).normal(size=(steps, 4)).astype(np.float32)
    found: dict[int, float] = {}
    for index, g in zip(asked.pool_indices(2).flat, gradients.flat, strict=False):
        found[index] = found.get(index, 0.0) + float(np.clip(g, -1.5, 1.5))
    sums = asked.sums(gradients)
    assert sums.dtype == np.float32
    assert sums.tolist() == [float(np.float32(total)) for total in found.values()]
    uses = asked.uses(steps)
    assert (len(uses), uses.sum()) == (len(found), steps * 4)


@pytest.mark.parametrize("size", [0, 2**20 + 1])
def test_a_pool_of_no_or_too_many_seeds_is_refused(size: int) -> None:
    frame = instruction_with(seed_policy=SeedPolicy.POOL, pool_size=size).encode()
    with pytest.raises(FrameError, match="out of its range"):
        TrainInstruction.decode(frame)


def test_an_intercept_is_asked_for_by_a_flag_that_earlier_versions_refuse() -> None:
    asked = instruction_with(track=INTERCEPT_TRACK, seed_policy=SeedPolicy.SHARED)
    frame = asked.encode()
    plain = replace(asked, track=0).encode()
    assert TrainInstruction.decode(frame) == asked
    assert frame[-1] == 4
    assert len(frame) == len(plain) + 3


@pytest.mark.parametrize(("track", "flags"), [(0, 4), (INTERCEPT_TRACK, 0), (INTERCEPT_TRACK, 1)])
def test_an_intercept_is_asked_for_by_track_and_flag_together(track: int, flags: int) -> None:
    fields = bytes(unpack(instruction_with(track=track).encode(), Kind.TRAIN))
    plain = fields[: len(unpack(instruction_with(track=0).encode(), Kind.TRAIN))]
    more = bytes([0, 0, flags]) if flags else b""
    with pytest.raises(FrameError, match="out of its range"):
        TrainInstruction.decode(pack(Kind.TRAIN, plain + more))


@pytest.mark.parametrize("count", [0, 2**20 + 1])
def test_a_report_of_no_or_too_many_sums_is_refused(count: int) -> None:
    report = report_to(POOL, gradients=np.zeros(count, np.float32))
    with pytest.raises(FrameError, match="out of range"):
        Report.decode(report.encode())


def test_gradients_are_clipped_only_if_asked() -> None:
    gradients = np.array([-3.0, 0.5, 2.0], np.float32)
    assert instruction_with(clip=1.5).clipped(gradients).tolist() == [-1.5, 0.5, 1.5]
    assert instruction_with(clip=0.0).clipped(gradients).tolist() == [-3.0, 0.5, 2.0]


def test_a_profiled_loss_is_asked_for_by_a_flag_that_earlier_versions_refuse() -> None:
    asked = instruction_with(is_profiled=True, curvature_every=2)
    frame = asked.encode()
    assert unpack(frame, Kind.TRAIN)[-1] == 16
    assert TrainInstruction.decode(frame) == asked
    body = bytes(unpack(frame, Kind.TRAIN)[:-1])
    with pytest.raises(FrameError, match="unknown kind"):
        TrainInstruction.decode(pack(Kind.TRAIN, body + bytes([32])))


def components(**changes: object) -> TrainInstruction:
    asked = {"steps": 1, "seed_policy": SeedPolicy.SHARED, "differences": "components"}
    return instruction_with(**(asked | changes))


def test_components_are_asked_for_by_a_flag_that_earlier_versions_refuse() -> None:
    frame = components().encode()
    assert unpack(frame, Kind.TRAIN)[-1] == 8
    asked = TrainInstruction.decode(frame)
    assert asked == components()
    assert asked.asks_for_components
    np.testing.assert_array_equal(asked.seeds(0), asked.seeds(5))
    np.testing.assert_array_equal(np.diff(asked.seeds(0).ravel()), 1)
    np.testing.assert_array_equal(asked.coefficients(np.array([0.5, -2.0])), [0.5, -2.0])


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 2},
        {"seed_policy": SeedPolicy.INDEPENDENT},
        {"seed_policy": SeedPolicy.POOL},
        {"learning_rate": 0.0},
        {"curvature_every": 1},
        {"track": INTERCEPT_TRACK},
        {"is_profiled": True},
    ],
)
def test_components_of_several_steps_or_own_directions_are_refused(
    changes: dict[str, object],
) -> None:
    with pytest.raises(FrameError, match="out of its range"):
        TrainInstruction.decode(components(**changes).encode())


def test_components_are_no_forward_differences() -> None:
    body = unpack(components().encode(), Kind.TRAIN)
    with pytest.raises(FrameError, match="out of its range"):
        TrainInstruction.decode(pack(Kind.TRAIN, bytes(body[:-1]) + bytes([9])))
