"""A kernel-enforced limit on the bytes/s that some processes read from a disk or write to it.

The limit is a cgroup v1 group, or a value in the cgroup v2 group that limits memory.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import count

from samara.devices.hardware.control_groups import (
    GROUP_NAME,
    GROUPS,
    current_group,
    enter_group,
    remove_group,
)
from samara.devices.hardware.memory_limit import CgroupV2Limit, MemoryLimit

_NUMBERS = count()
_V1_FILES = ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device")
_V2_FILE = "io.max"


class DiskLimit(ABC):
    """A limit on the bytes/s that processes read from a disk, and on the bytes/s they write."""

    @abstractmethod
    def command(self, command: Sequence[str]) -> list[str]:
        """Return the given command wrapped to run under the limit."""

    @abstractmethod
    def set_rate(self, device: str, rate: float | None) -> None:
        """Set the limit.

        Args:
            device: device numbers of the disk, as in `OwnDisk`.
            rate: bytes/s in each direction; None means no limit.
        """

    def close(self) -> None:  # noqa: B027
        """Remove the limit."""


class CgroupV1Disk(DiskLimit):
    """A limit by the blkio controller of cgroup v1."""

    def __init__(self) -> None:
        """Create the group.

        Raises:
            OSError: if this machine does not permit the group, or if the kernel cannot limit disks.
        """
        name = GROUP_NAME.format(owner=os.getpid(), number=next(_NUMBERS))
        self.folder = GROUPS / "blkio" / current_group("blkio") / name
        self.folder.mkdir()
        missing = [file for file in _V1_FILES if not (self.folder / file).exists()]
        if missing:
            remove_group(self.folder)
            raise FileNotFoundError(f"the kernel has no {missing[0]}")

    def command(self, command: Sequence[str]) -> list[str]:
        """Return a shell command that enters the group and then executes the given command."""
        return enter_group(self.folder, command)

    def set_rate(self, device: str, rate: float | None) -> None:
        """Set the limit. The kernel reads a rate of 0 as no limit."""
        for file in _V1_FILES:
            (self.folder / file).write_text(f"{device} {_whole(rate) or 0}")

    def close(self) -> None:
        """Kill the remaining processes of the group, and remove it."""
        remove_group(self.folder)


class CgroupV2Disk(DiskLimit):
    """A disk limit set in the cgroup v2 group that limits the memory of the same processes."""

    def __init__(self, memory: CgroupV2Limit) -> None:
        """Find the group's file.

        Raises:
            OSError: if the io controller is not delegated.
        """
        self._file = memory.folder / _V2_FILE
        if not self._file.exists():
            raise FileNotFoundError(f"the io controller is not delegated: no {_V2_FILE}")

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command unchanged."""
        return list(command)

    def set_rate(self, device: str, rate: float | None) -> None:
        """Set the limit."""
        most = _whole(rate) or "max"
        self._file.write_text(f"{device} rbps={most} wbps={most}")


def limit_disk(memory: MemoryLimit) -> DiskLimit:
    """Create a disk limit, of the first kind that this machine permits, without a rate.

    Args:
        memory: memory limit of the same processes.

    Raises:
        OSError: if no kind of limit is permitted.
    """
    return CgroupV2Disk(memory) if isinstance(memory, CgroupV2Limit) else CgroupV1Disk()


def _whole(rate: float | None) -> int | None:
    """Return a rate as whole bytes/s, at least 1."""
    return None if rate is None else max(1, round(rate))
