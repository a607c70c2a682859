"""The faults of a rehearsal, each by the kernel's own means, and without leftovers."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from helpers import ROOT

from samara.devices.hardware.disk_limit import CgroupV1Disk, limit_disk
from samara.devices.hardware.leftovers import caretaker, find_disks, find_groups, remove_leftovers
from samara.devices.hardware.memory_limit import CgroupLimit, memory_limit
from samara.devices.hardware.memory_shortage import MemoryShortage
from samara.devices.hardware.own_disk import own_disk
from samara.devices.hardware.shifted_clock import ShiftedClock, find_library
from samara.shared.errors import DeviceError

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
DAY = 86_400.0
WITH_A_DISK = """
import signal, sys
from pathlib import Path
from samara.devices.hardware.disk_limit import limit_disk
from samara.devices.hardware.leftovers import caretaker
from samara.devices.hardware.memory_limit import memory_limit
from samara.devices.hardware.own_disk import own_disk

with caretaker(), memory_limit(2**30) as memory, own_disk(Path(sys.argv[1])) as disk:
    limit_disk(memory).set_rate(disk.device, 1000.0)
    print("begun", flush=True)
    signal.pause()
"""
HOLDING = "held = b'1' * int({bytes}); print('held', flush=True); import sys; sys.stdin.read()"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    try:
        with own_disk(tmp_path / "trial"):
            pass
    except DeviceError as error:
        pytest.skip(str(error))
    return tmp_path / "home"


def test_a_full_disk_takes_no_byte_until_it_is_freed(folder: Path) -> None:
    with own_disk(folder) as disk:
        (folder / "before").write_text("kept")
        disk.fill()
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            (folder / "during").write_text("lost")
        assert (folder / "before").read_text() == "kept"
        disk.free()
        (folder / "after").write_text("written")
        assert find_disks()
    assert list(folder.iterdir()) == []
    assert os.getpid() not in find_disks().values()


def test_a_slow_disk_has_its_rate_for_the_processes_of_its_client(folder: Path) -> None:
    try:
        CgroupV1Disk().close()
    except OSError as error:
        pytest.skip(f"the kernel limits no disk of some processes here: {error}")
    with memory_limit(2**30) as memory, own_disk(folder) as disk:
        limit = limit_disk(memory)
        assert isinstance(limit, CgroupV1Disk)
        file = limit.folder / "blkio.throttle.write_bps_device"
        limit.set_rate(disk.device, 12_345.4)
        assert file.read_text().split() == [disk.device, "12345"]
        inside = limit.command(["cat", "/proc/self/cgroup"])
        assert limit.folder.name in subprocess.check_output(inside, text=True)
        limit.set_rate(disk.device, None)
        assert file.read_text() == ""
        limit.close()
        assert not limit.folder.exists()


def test_a_set_clock_is_wrong_for_its_processes_and_right_again(tmp_path: Path) -> None:
    try:
        clock = ShiftedClock(tmp_path / "shift", find_library())
    except DeviceError as error:
        pytest.skip(str(error))
    tell = [sys.executable, "-S", "-c", "import time; print(time.time())"]

    def ahead() -> float:
        """Return the number of days by which a process's clock is ahead, rounded."""
        environment = {**os.environ, **clock.environment}
        here = time.time()
        return round((float(subprocess.check_output(tell, env=environment)) - here) / DAY, 2)

    assert ahead() == 0
    clock.shift(-DAY)
    assert ahead() == -1
    clock.shift(0.0)
    assert ahead() == 0


def test_a_shortage_has_the_kernel_kill_a_process_and_ends() -> None:
    size = 2**27
    with memory_limit(2**30) as memory:
        if not isinstance(memory, CgroupLimit):
            pytest.skip("memory is not limited by a control group here")
        victim = subprocess.Popen(
            memory.command([sys.executable, "-S", "-c", HOLDING.format(bytes=size)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert victim.stdin is not None
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"held\n"
        shortage = MemoryShortage(memory)
        assert victim.wait(60) == -signal.SIGKILL
        assert memory.kills() == 1
        shortage.end()
        victim.stdin.close()
        victim.stdout.close()
        again = memory.command([sys.executable, "-S", "-c", HOLDING.format(bytes=2 * size)])
        subprocess.run(again, stdin=subprocess.DEVNULL, check=True, stdout=subprocess.DEVNULL)


def test_a_killed_process_leaves_no_disk(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WITH_A_DISK, str(folder)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    assert process.pid in find_disks().values()
    keepers = psutil.Process(process.pid).children()
    process.kill()
    process.wait(60)
    process.stdout.close()
    psutil.wait_procs(keepers, timeout=60)
    assert process.pid not in {*find_disks().values(), *find_groups().values()}
    assert not os.path.ismount(folder)
    assert [file for file in folder.parent.iterdir() if file.suffix == ".disk"] == []


def test_leftovers_of_a_living_process_stay(folder: Path) -> None:
    with own_disk(folder):
        remove_leftovers()
        with caretaker():
            assert os.path.ismount(folder)
