"""Measurements before a rehearsal, in processes that start in the same way as a client's."""

import subprocess
import sys
from collections.abc import Sequence

from samara.devices.live.processes import child_environment
from samara.shared.errors import DeviceError

_SECONDS = 1_800.0


def measure(module: str, arguments: Sequence[str], what: str) -> list[float]:
    """Run a module in one process per argument, in parallel; return each process's last number.

    Args:
        module: module that prints a number.
        arguments: one argument per process.
        what: name of the measured quantity, for error messages.

    Raises:
        DeviceError: if a process fails.
    """
    running: list[subprocess.Popen[str]] = []
    try:
        for argument in arguments:
            process = subprocess.Popen(
                [sys.executable, "-m", module, argument],
                env=child_environment() | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            running.append(process)
        return [_number_of(process, what) for process in running]
    finally:
        for process in running:
            process.kill()


def _number_of(process: "subprocess.Popen[str]", what: str) -> float:
    said, complained = process.communicate(timeout=_SECONDS)
    if process.returncode:
        lines = complained.strip().splitlines()
        raise DeviceError(
            f"{what} cannot be measured: {lines[-1] if lines else process.returncode}"
        )
    return float(said.split()[-1])
