"""The limits of a command: plans, slow links, and their descriptions."""

from pathlib import Path

import pytest

from samara.devices.hardware import cpu_limit, leftovers
from samara.devices.hardware.control_groups import processes_of
from samara.devices.hardware.cpu_limit import LEAST_CORES, PERIOD_MICROSECONDS, CgroupV2Cpu
from samara.devices.hardware.hold import describe_link, plan_hold, status_of
from samara.devices.hardware.leftovers import find_groups, remove_leftovers
from samara.devices.hardware.link_shaping import slow_link
from samara.devices.hardware.memory_limit import CgroupV2Limit
from samara.devices.hardware.profile import load_device, load_link
from samara.shared.errors import DeviceError


def test_a_slower_device_gets_a_share_of_the_cores() -> None:
    device = load_device("laptop")
    rate = device.compute.fp32 * device.timing.rate_share
    hold = plan_hold(device, None, 1.0, 2 * rate, 8)
    assert hold.cores == pytest.approx(4.0)
    assert hold.limit_bytes == device.usable_bytes
    assert hold.link is None


def test_a_faster_device_is_refused_without_enough_dilation() -> None:
    device = load_device("orin-nano-8gb")
    rate = device.compute.fp32 * device.timing.rate_share
    with pytest.raises(
        DeviceError,
        match=r"orin-nano-8gb is 5\.0 times as fast .* set --dilation, .*, to at least 5\.0",
    ):
        plan_hold(device, None, 4.0, rate / 5, 2)
    hold = plan_hold(device, load_link("lte"), 10.0, rate / 5, 2)
    assert hold.cores == pytest.approx(1.0)
    assert hold.link is not None
    assert hold.link.up == pytest.approx(load_link("lte").up / 10)


def test_a_share_is_never_less_than_the_kernel_grants() -> None:
    assert plan_hold(load_device("laptop"), None, 1e6, 1e15, 2).cores == LEAST_CORES


def test_a_link_that_is_slowed_down() -> None:
    link = load_link("lte")
    slow = slow_link(link, 4.0)
    assert (slow.down, slow.latency, slow.jitter) == (
        link.down / 4,
        link.latency * 4,
        link.jitter * 4,
    )
    assert slow.loss == link.loss


@pytest.mark.parametrize(("has_netem", "rest"), [(True, "25 ms, 0.5% lost"), (False, "no netem")])
def test_a_link_in_words(has_netem: bool, rest: str) -> None:
    line = describe_link(load_link("lte"), "10.203.0.1", has_netem)
    assert line.startswith("link: lte, 4 Mbit/s down, 3 up, ")
    assert rest in line
    assert line.endswith("this machine is 10.203.0.1")


@pytest.mark.parametrize(("status", "shown"), [(0, 0), (3, 3), (-9, 137), (-15, 143)])
def test_a_status_as_a_shell_gives_it(status: int, shown: int) -> None:
    assert status_of(status) == shown


@pytest.fixture
def unified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CgroupV2Limit:
    """A memory limit of cgroup v2 in a folder that replaces the kernel's folder."""
    monkeypatch.setattr(CgroupV2Limit, "parent", lambda self: tmp_path)
    return CgroupV2Limit(100)


def test_the_files_of_cgroup_v2(unified: CgroupV2Limit) -> None:
    limit = CgroupV2Cpu(unified, 0.5)
    assert (unified.folder / "memory.max").read_text() == "100"
    assert (unified.folder / "memory.swap.max").read_text() == "0"
    assert (
        limit.folder / "cpu.max"
    ).read_text() == f"{PERIOD_MICROSECONDS // 2} {PERIOD_MICROSECONDS}"
    assert limit.folder.parent == unified.folder == unified.entrance.parent
    assert unified.command(["true"])[3] == str(unified.entrance / "cgroup.procs")
    (limit.folder / "cgroup.procs").write_text("17")
    (unified.entrance / "cgroup.procs").write_text("4\n5\n")
    (unified.folder / "cgroup.procs").write_text("")
    assert sorted(processes_of(unified.folder)) == [4, 5, 17]


def test_groups_are_known_by_their_owner(
    unified: CgroupV2Limit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "GROUPS", tmp_path)
    monkeypatch.setattr(leftovers, "current_group", lambda controllers: "")
    (tmp_path / "samara-owner").mkdir()
    (tmp_path / "other-1-2").mkdir()
    found = find_groups()
    assert set(found) == {unified.folder}
    removed: list[Path] = []
    monkeypatch.setattr(leftovers, "remove_group", removed.append)
    monkeypatch.setattr(leftovers, "find_namespaces", dict)
    monkeypatch.setattr(leftovers, "find_disks", dict)  # those of a rehearsal that runs here
    remove_leftovers()
    assert removed == []
    remove_leftovers(found[unified.folder])
    assert removed == [unified.folder]
    monkeypatch.setattr(leftovers.psutil, "pid_exists", lambda process: False)
    remove_leftovers()
    assert removed == [unified.folder] * 2


def test_the_share_of_a_period() -> None:
    assert cpu_limit._quota(0.25) == PERIOD_MICROSECONDS / 4
    assert cpu_limit._quota(0.0) == LEAST_CORES * PERIOD_MICROSECONDS
