"""A kernel-enforced limit on the number of cores that some processes may use.

The limit is a cgroup v1 group, or a subgroup of the cgroup v2 group that limits memory. The
processes of the group have priority over other processes on the same cores. They therefore get the
whole processor time that the limit allows.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

from samara.devices.hardware.control_groups import (
    GROUP_NAME,
    GROUPS,
    current_group,
    enter_group,
    remove_group,
)
from samara.devices.hardware.memory_limit import CgroupV2Limit, MemoryLimit

PERIOD_MICROSECONDS = 200_000
"""Period of the kernel's scheduling quota, in microseconds.

With a shorter period, the processes lose more of their share to cold caches.
"""
LEAST_CORES = 0.02
"""Smallest number of cores, which is 4 ms of processor time in a period."""
_NUMBERS = count()


class CpuLimit(ABC):
    """A limit on the processor time of processes.

    Attributes:
        name: ``cgroup v1`` or ``cgroup v2``.
        folder: folder of the control group.
    """

    name: str
    folder: Path

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the given command wrapped to run under the limit."""
        return enter_group(self.folder, command)

    def add(self, process: int) -> None:
        """Put a running process and its future children under the limit.

        Raises:
            OSError: if no process has this id.
        """
        (self.folder / "cgroup.procs").write_text(str(process))

    @abstractmethod
    def set_cores(self, cores: float) -> None:
        """Set the number of cores, at least `LEAST_CORES`."""

    def close(self) -> None:
        """Remove the limit."""
        remove_group(self.folder)


class CgroupV1Cpu(CpuLimit):
    """A limit by the cpu controller of cgroup v1."""

    name = "cgroup v1"
    _MOST_SHARES = 2**18

    def __init__(self, cores: float) -> None:
        """Create the group.

        Raises:
            OSError: if this machine does not permit the group.
        """
        name = GROUP_NAME.format(owner=os.getpid(), number=next(_NUMBERS))
        self.folder = GROUPS / "cpu" / current_group("cpu") / name
        self.folder.mkdir()
        try:
            self.set_cores(cores)
            with suppress(OSError):
                (self.folder / "cpu.shares").write_text(str(self._MOST_SHARES))
        except OSError:
            self.folder.rmdir()
            raise

    def set_cores(self, cores: float) -> None:
        """Set the number of cores."""
        (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
        (self.folder / "cpu.cfs_quota_us").write_text(str(_quota(cores)))


class CgroupV2Cpu(CpuLimit):
    """A CPU limit set in a subgroup of the cgroup v2 group that limits memory."""

    name = "cgroup v2"
    _MOST_WEIGHT = 10_000

    def __init__(self, memory: CgroupV2Limit, cores: float) -> None:
        """Create the group.

        Raises:
            OSError: if the cpu controller is not delegated.
        """
        self.folder = memory.folder / "processor"
        self.folder.mkdir()
        try:
            self.set_cores(cores)
            with suppress(OSError):
                (self.folder / "cpu.weight").write_text(str(self._MOST_WEIGHT))
        except OSError:
            self.folder.rmdir()
            raise

    def set_cores(self, cores: float) -> None:
        """Set the number of cores."""
        (self.folder / "cpu.max").write_text(f"{_quota(cores)} {PERIOD_MICROSECONDS}")


def limit_cpu(memory: MemoryLimit, cores: float) -> CpuLimit:
    """Create a CPU limit, of the first kind that this machine permits.

    Args:
        memory: memory limit of the same processes.
        cores: number of cores, at least `LEAST_CORES`.

    Raises:
        OSError: if no kind of limit is permitted.
    """
    try:
        return CgroupV1Cpu(cores)
    except OSError:
        if isinstance(memory, CgroupV2Limit):
            return CgroupV2Cpu(memory, cores)
        raise


def _quota(cores: float) -> int:
    """Return a number of cores as microseconds per period."""
    return round(max(cores, LEAST_CORES) * PERIOD_MICROSECONDS)
