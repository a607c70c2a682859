"""Processes under a memory limit, by any means that this machine permits."""

import json
import logging
import sys
from pathlib import Path

import pytest

from samara.devices.hardware import memory_limit as memory
from samara.devices.hardware.memory_limit import (
    CgroupV1Limit,
    CgroupV2Limit,
    LimitedRunResult,
    MemoryLimit,
    PollingLimit,
    SystemdLimit,
    run_with_memory_limit,
)
from samara.shared.errors import DeviceError

LIMIT = 200 * 2**20
HOG = (
    "import json\nheld = []\n"
    "for step in range(100):\n"
    "    held.append(bytearray(8 * 2**20))\n"
    "    print(json.dumps({'step': step}), flush=True)\n"
)
MODEST = "print('{\"step\": 3}'); print('no json'); print('{\"step\": \"x\"}'); raise SystemExit(5)"
SLOW_HOG = HOG.replace("flush=True)", "flush=True)\n    import time; time.sleep(0.03)")


def _permitted(way: type[MemoryLimit]) -> bool:
    try:
        way(LIMIT).close()
    except OSError:
        return False
    return True


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.parametrize("way", [CgroupV1Limit, CgroupV2Limit, SystemdLimit, PollingLimit])
class TestEveryWay:
    @pytest.fixture(autouse=True)
    def _only_this_way(self, way: type[MemoryLimit], monkeypatch: pytest.MonkeyPatch) -> None:
        if not _permitted(way):
            pytest.skip(f"{way.name} is not permitted here")
        monkeypatch.setattr(memory, "KERNEL_LIMITS", (way,))

    def test_a_command_over_the_limit_is_killed(self, way: type[MemoryLimit]) -> None:
        ending = run_with_memory_limit(_python(SLOW_HOG), LIMIT)
        assert ending.killed
        assert ending.status != 0
        assert ending.enforced_by == way.name
        assert ending.step is not None
        assert 10 <= ending.step < 30
        assert ending.peak_bytes > LIMIT / 2
        assert f"killed by the memory limit after step {ending.step}" in str(ending)

    def test_a_command_within_the_limit_ends_normally(self, way: type[MemoryLimit]) -> None:
        lines: list[str] = []
        ending = run_with_memory_limit(_python(MODEST), LIMIT, lines.append)
        assert not ending.killed
        assert (ending.status, ending.step) == (5, 3)
        assert lines[1] == "no json"

    def test_a_command_knows_what_the_limit_leaves_it(self, way: type[MemoryLimit]) -> None:
        lines: list[str] = []
        asking = "from samara.shared.machine.free_memory import free_memory; print(free_memory())"
        assert run_with_memory_limit(_python(asking), LIMIT, lines.append).status == 0
        assert (0 < int(lines[0]) < LIMIT) == (way is not PollingLimit)

    def test_the_next_one_runs(self, way: type[MemoryLimit]) -> None:
        assert run_with_memory_limit(_python(SLOW_HOG), LIMIT).killed
        assert run_with_memory_limit(_python(""), LIMIT).status == 0


def test_nothing_is_left_of_a_group() -> None:
    if not _permitted(CgroupV1Limit):
        pytest.skip("cgroup v1 is not permitted here")
    with memory.memory_limit(LIMIT) as limit:
        assert isinstance(limit, CgroupV1Limit)
        folder = limit.folder
        assert folder.is_dir()
    assert not folder.exists()


def test_a_group_that_cannot_be_limited_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CgroupV2Limit, "parent", lambda self: tmp_path)
    monkeypatch.setattr(CgroupV2Limit, "limit_file", "no/such/file")
    with pytest.raises(OSError, match="no/such/file"):
        CgroupV2Limit(LIMIT)
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_is_permitted_it_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Forbidden(PollingLimit):
        name = "forbidden"

        def __init__(self, limit_bytes: int) -> None:
            raise PermissionError("not for you")

    monkeypatch.setattr(memory, "KERNEL_LIMITS", (Forbidden,))
    with caplog.at_level(logging.WARNING):
        ending = run_with_memory_limit(_python(""), LIMIT)
    assert ending.enforced_by == "polling"
    assert "forbidden: not for you" in caplog.text


def test_a_command_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "KERNEL_LIMITS", ())
    with pytest.raises(DeviceError, match="no-such-command"):
        run_with_memory_limit(["no-such-command"], LIMIT)
    with pytest.raises(DeviceError, match="memory limit is 0 bytes"):
        run_with_memory_limit(["true"], 0)


def test_an_ending_is_readable() -> None:
    ending = LimitedRunResult(True, -9, None, 2**30, 2**31, "cgroup v1")
    assert str(ending) == (
        "killed by the memory limit before its first step: peak 1,024 of 2,048 MiB (cgroup v1)"
    )
    assert json.dumps(ending.__dict__)
