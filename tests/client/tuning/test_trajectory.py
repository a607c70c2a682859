"""The trajectory file: it is read as written, cut after a crash, and refused if damaged."""

import os
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import no_room, no_sync
from hypothesis import given
from hypothesis import strategies as st
from trajectories import MODEL, ToySpace, header_of, steps_of

from samara.client.tuning import trajectory_format
from samara.client.tuning.descent import SGD, Adam, Descent, Momentum, UpdateRule
from samara.client.tuning.trajectory import TrajectoryWriter, read_trajectory
from samara.client.tuning.trajectory_format import TrajectoryHeader
from samara.shared.errors import TrainingError, TrajectoryError
from samara.shared.protocol.directions import query_seeds

SIZE = 40
GRADIENTS = [step.gradients for step in steps_of(6, most=3)]


def open_writer(path: Path, portable: bool = True, **changes: Any) -> closing[TrajectoryWriter]:
    space = ToySpace(SIZE, portable)
    return closing(TrajectoryWriter(path, header_of(space, **changes), space))


def sizes_of(path: Path, portable: bool = True) -> list[int]:
    """Write a trajectory of all steps; return its size at first and after each step."""
    with open_writer(path, portable) as writer:
        sizes = [path.stat().st_size]
        for number, gradients in enumerate(GRADIENTS):
            writer.append(gradients, 0.1 / (number + 1))
            sizes.append(path.stat().st_size)
    return sizes


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync, because no test here depends on it."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def test_a_trajectory_reads_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "trajectory"
    sizes = sizes_of(path)
    trajectory = read_trajectory(path)
    assert trajectory.header == header_of(ToySpace(SIZE))
    assert (trajectory.warning, trajectory.start) == ("", b"")
    for number, (step, gradients) in enumerate(zip(trajectory.steps, GRADIENTS, strict=True)):
        np.testing.assert_array_equal(step.gradients, gradients)
        np.testing.assert_array_equal(
            step.seeds, query_seeds(2**64 - 1, 0, 10, 5)[number, : len(gradients)]
        )
        assert step.learning_rate == float(np.float32(0.1 / (number + 1)))
        assert step.epsilon == 0.01
        assert sizes[number + 1] - sizes[number] == 20 + 4 * len(gradients)


@pytest.mark.parametrize("update", [SGD(), Momentum(0.5), Adam(0.5, 0.75)])
@pytest.mark.parametrize("portable", [True, False])
@pytest.mark.parametrize("hold", [True, False])
def test_base_and_trajectory_are_the_trained_model(
    update: UpdateRule, portable: bool, hold: bool, tmp_path: Path
) -> None:
    """Steps, a crash, a rebuild, more steps and a final rebuild give the same bits throughout."""
    path = tmp_path / "trajectory"
    trained = ToySpace(SIZE, portable)
    descent = Descent(trained, update)
    for part in (GRADIENTS[:3], GRADIENTS[3:]):
        space = ToySpace(SIZE, portable)
        if descent.history and not portable:  # the second machine computes another start
            space.add(0, space.values(0, SIZE) * 1e-6)
        header = header_of(space, update)
        with closing(TrajectoryWriter(path, header, space)) as writer:
            resumed = writer.trajectory.rebuild(space, update, MODEL, hold)
            np.testing.assert_array_equal(space.theta, trained.theta)
            for gradients in part:
                step = writer.append(gradients, 0.1)
                resumed.step(step)
                descent.step(step)
        np.testing.assert_array_equal(space.theta, trained.theta)
    assert len(read_trajectory(path).steps) == len(GRADIENTS)


def test_a_crash_at_any_byte_leaves_the_whole_steps(tmp_path: Path) -> None:
    path = tmp_path / "trajectory"
    sizes = sizes_of(path)
    whole = path.read_bytes()
    for size in range(sizes[0], len(whole)):
        number = sum(size >= end for end in sizes[1:])
        path.write_bytes(whole[:size])
        warning = read_trajectory(path).warning
        torn = size - sizes[number]
        assert (f"dropped {torn} bytes of step {number + 1}" in warning) if torn else not warning
        assert path.read_bytes() == whole[:size]
        with open_writer(path) as writer:
            assert len(writer.trajectory.steps) == number
            for later, gradients in list(enumerate(GRADIENTS))[number:]:
                writer.append(gradients, 0.1 / (later + 1))
        assert path.read_bytes() == whole


@pytest.mark.parametrize("zeros", ["all of it", "its end"])
def test_a_record_whose_bytes_never_reached_the_disk_is_cut(zeros: str, tmp_path: Path) -> None:
    path = tmp_path / "trajectory"
    sizes = sizes_of(path)
    whole = path.read_bytes()
    kept = sizes[-2] if zeros == "all of it" else sizes[-2] + 18
    path.write_bytes(whole[:kept] + bytes(len(whole) - kept))
    with open_writer(path) as writer:
        assert len(writer.trajectory.steps) == len(GRADIENTS) - 1
        assert f"dropped {sizes[-1] - sizes[-2]} bytes" in writer.trajectory.warning
    assert path.read_bytes() == whole[: sizes[-2]]


def test_a_flipped_bit_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trajectory"
    sizes_of(path, portable=False)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(
            whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        )
        with pytest.raises(TrajectoryError, match=r"trajectory: .*; restore the file"):
            read_trajectory(path)
    damaged = path.read_bytes()
    with pytest.raises(TrajectoryError, match="restore the file"):
        open_writer(path, portable=False)
    assert path.read_bytes() == damaged


def test_zeros_are_excused_at_the_end_only(tmp_path: Path) -> None:
    path = tmp_path / "trajectory"
    end = sizes_of(path)[2]
    whole = path.read_bytes()
    path.write_bytes(whole[: end - 4] + bytes(4) + whole[end:])
    with pytest.raises(TrajectoryError, match="gradients of step 2 are damaged"):
        read_trajectory(path)


def test_records_in_another_order_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trajectory"
    sizes = sizes_of(path)
    whole = path.read_bytes()
    records = [whole[a:b] for a, b in pairwise(sizes)]
    for order in ([1, 0], [0, 0], [0, 2]):
        path.write_bytes(whole[: sizes[0]] + b"".join(records[i] for i in order))
        with pytest.raises(TrajectoryError, match="damaged or out of order"):
            read_trajectory(path)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(TrajectoryError, match=r"does not begin with|version|header"):
        TrajectoryHeader.decode(data)
    with pytest.raises(TrajectoryError, match=r"version|header"):
        TrajectoryHeader.decode(trajectory_format._MAGIC + data.ljust(16, b"\0"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_id": bytes(32)}, "model_id"),
        ({"root": 5}, r"root \(18446744073709551615 in the file, 5 here\)"),
        ({"epsilon": 0.1}, r"epsilon \(0\.01 in the file, 0\.1 here\)"),
        ({"settings_hash": bytes([1] * 32)}, "settings_hash"),
        ({"update": Momentum(0.5)}, r"update \(.*sgd.* in the file, .*momentum.* here\)"),
    ],
)
def test_another_run_does_not_continue_it(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "trajectory"
    sizes_of(path)
    with pytest.raises(TrajectoryError, match=f"made with another model or other settings: {said}"):
        open_writer(path, **changes)


def test_another_space_is_not_rebuilt(tmp_path: Path) -> None:
    path = tmp_path / "trajectory"
    sizes_of(path)
    trajectory = read_trajectory(path)
    moved = ToySpace(SIZE)
    moved.assign(3, moved.values(3, 1) + 1)
    before = moved.theta
    for space, said in ((moved, "start_digest"), (ToySpace(SIZE + 1), "size.*tensors_hash")):
        with pytest.raises(TrajectoryError, match=said):
            trajectory.rebuild(space, SGD(), MODEL)
    np.testing.assert_array_equal(moved.theta, before)
    with pytest.raises(TrajectoryError, match="model_id"):
        trajectory.rebuild(ToySpace(SIZE), SGD(), bytes(32))


def test_there_is_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "trajectory"
    with open_writer(path) as writer:
        with pytest.raises(TrajectoryError, match="another process is writing the file"):
            open_writer(path)
        writer.append(GRADIENTS[0], 0.1)
        assert len(read_trajectory(path).steps) == 1
    with open_writer(path) as writer:
        assert len(writer.trajectory.steps) == 1


def test_a_step_that_is_not_finite_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "trajectory"
    with open_writer(path) as writer:
        with pytest.raises(TrainingError, match="not finite"):
            writer.append(np.array([np.nan], np.float32), 0.1)
        writer.append(GRADIENTS[0], 0.1)
    assert len(read_trajectory(path).steps) == 1


@pytest.mark.parametrize("fault", [no_sync, no_room])
def test_a_full_disk_leaves_the_file_as_it_was(fault: Any, tmp_path: Path) -> None:
    path = tmp_path / "trajectory"
    with open_writer(path) as writer:
        writer.append(GRADIENTS[0], 0.1)
        before = path.read_bytes()
        with (
            fault(len(before) + 7),
            pytest.raises(TrajectoryError, match=r"step 2 cannot be appended"),
        ):
            writer.append(GRADIENTS[1], 0.1)
        assert path.read_bytes() == before
        writer.append(GRADIENTS[1], 0.1)
    assert len(read_trajectory(path).steps) == 2


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TrajectoryError, match="cannot be read"):
        read_trajectory(tmp_path / "nothing")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(TrajectoryError, match="cannot be opened"):
        open_writer(tmp_path / "file" / "trajectory")


def test_a_revert_undoes_the_steps_after_the_one_it_names(tmp_path: Path) -> None:
    path = tmp_path / "trajectory"
    with open_writer(path) as writer:
        first = writer.append(GRADIENTS[0], 0.1)
        writer.append(GRADIENTS[1], 0.1)
        writer.append_revert(1)
        fourth = writer.append(GRADIENTS[0], 0.05)
    with open_writer(path) as writer:  # goes on behind a return, too
        writer.append_revert(3)
        sixth = writer.append(GRADIENTS[1], 0.01)
    trajectory = read_trajectory(path)
    assert [isinstance(record, int) for record in trajectory.records] == [
        *(False, False, True, False, True, False)
    ]
    for step, own in zip(trajectory.steps, (first, sixth), strict=True):
        np.testing.assert_array_equal(step.seeds, own.seeds)
        assert step.learning_rate == own.learning_rate
    assert not set(fourth.seeds) & set(first.seeds)
    data = path.read_bytes()
    for dropped in range(1, 8):
        path.write_bytes(data[:-dropped])
        assert len(read_trajectory(path).records) == 5


def test_a_revert_to_a_later_step_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trajectory"
    with open_writer(path) as writer:
        writer.append_revert(1)
    with pytest.raises(TrajectoryError, match="step 1 reverts to step 1"):
        read_trajectory(path)
