"""`samara device run`: commands under real limits, which leave nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import psutil
import pytest
from helpers import ROOT

from samara.devices.hardware.cpu_limit import CgroupV1Cpu
from samara.devices.hardware.leftovers import find_groups, find_namespaces
from samara.devices.hardware.link_shaping import check_shaping
from samara.devices.hardware.memory_limit import CgroupV1Limit
from samara.shared.errors import DeviceError

RUN = [sys.executable, "-m", "samara", "device", "run", "--as", "orin-nano-4gb"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
WAIT = "import signal, sys; print('begun', flush=True); signal.pause()"
HOG = "held = []\nwhile True: held.append(bytearray(2**26))"


@pytest.fixture
def permitted() -> None:
    try:
        CgroupV1Limit(2**30).close()
        CgroupV1Cpu(1.0).close()
    except OSError as error:
        pytest.skip(f"control groups are not permitted here: {error}")


def _run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*RUN, *words], env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=120
    )


def _left_by(process: int) -> list[object]:
    left = [*find_groups().items(), *find_namespaces().items()]
    return [name for name, owner in left if owner == process]


def _until(ready: Callable[[], bool], process: psutil.Process) -> None:
    """Wait for a consequence of the end of a process."""
    for _ in range(600):
        if ready():
            return
        psutil.wait_procs([process], timeout=0.1)
    assert ready()


@pytest.mark.usefixtures("permitted")
class TestHeld:
    def test_status_and_output_are_the_commands(self) -> None:
        done = _run("--dilation", "1000", "--", sys.executable, "-c", "print('x'); exit(5)")
        assert done.returncode == 5, done.stderr
        assert done.stdout == "x\n"
        assert "memory: 2,662 MiB of orin-nano-4gb, by cgroup v1" in done.stderr
        assert "processor: 0.0" in done.stderr

    def test_the_kernel_ends_what_exceeds_the_memory(self) -> None:
        done = _run("--dilation", "20", "--", sys.executable, "-c", HOG)
        assert done.returncode == 137
        assert "killed by the memory limit of 2,662 MiB" in done.stderr

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
    def test_nothing_is_left(self, number: signal.Signals) -> None:
        command = [*RUN, "--dilation", "1000", "--", sys.executable, "-c", WAIT]
        process = subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        [held] = [
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if "signal.pause" in " ".join(child.cmdline())
        ]
        assert _left_by(process.pid)
        if number == signal.SIGINT:  # as a terminal's Ctrl-C
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        process.wait(60)
        process.stdout.close()
        _until(lambda: not held.is_running() and not _left_by(process.pid), held)


def test_a_link_is_made_and_removed() -> None:
    try:
        check_shaping()
    except DeviceError as error:
        pytest.skip(str(error))
    show = ["tc", "qdisc", "show"]
    done = _run("--dilation", "1000", "--link", "lte", "--", *show)
    assert done.returncode == 0, done.stderr
    assert "tbf" in done.stdout
    assert "link: lte, 0.004 Mbit/s down" in done.stderr


def test_mistakes_are_one_line() -> None:
    unknown = _run("--link", "no-such-link", "--", "true")
    assert unknown.returncode == 1
    assert "no-such-link" in unknown.stderr
    fast = _run("--", "true")
    assert "times as fast as this machine" in fast.stderr
    assert "Traceback" not in fast.stderr
