"""A limit of processor time: some processes get a number of cores and no more, by the kernel.

It is a control group of cgroup v1, or a group inside that of a memory limit of cgroup v2. Its
processes go before others that want the same cores, so that they get what the limit leaves them.
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
"""Time in which the kernel grants the share: in a shorter one more of it goes to filling caches."""
LEAST_CORES = 0.02
"""The smallest share, four thousandths of a second in a period."""
_NUMBERS = count()


class CpuLimit(ABC):
    """A limit of the processor time of the processes that are put into it.

    Attributes:
        name: ``cgroup v1`` or ``cgroup v2``.
        folder: the control group.
    """

    name: str
    folder: Path

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs a command under the limit."""
        return enter_group(self.folder, command)

    def add(self, process: int) -> None:
        """Put a running process under the limit; its children follow it.

        Raises:
            OSError: if there is no such process.
        """
        (self.folder / "cgroup.procs").write_text(str(process))

    @abstractmethod
    def set_cores(self, cores: float) -> None:
        """Set the number of cores, from `LEAST_CORES` on."""

    def close(self) -> None:
        """Remove the limit."""
        remove_group(self.folder)


class CgroupV1Cpu(CpuLimit):
    """A limit by the cpu controller of cgroup v1."""

    name = "cgroup v1"
    _MOST_SHARES = 2**18

    def __init__(self, cores: float) -> None:
        """Make the group.

        Raises:
            OSError: if this is not permitted on this machine.
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
    """A limit by a group inside that of a memory limit of cgroup v2."""

    name = "cgroup v2"
    _MOST_WEIGHT = 10_000

    def __init__(self, memory: CgroupV2Limit, cores: float) -> None:
        """Make the group.

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
    """Make the first permitted kind of limit.

    Args:
        memory: memory limit of the same processes.
        cores: number of cores, from `LEAST_CORES` on.

    Raises:
        OSError: if none is permitted on this machine.
    """
    try:
        return CgroupV1Cpu(cores)
    except OSError:
        if isinstance(memory, CgroupV2Limit):
            return CgroupV2Cpu(memory, cores)
        raise


def _quota(cores: float) -> int:
    """Return the microseconds of a period that so many cores are."""
    return round(max(cores, LEAST_CORES) * PERIOD_MICROSECONDS)
