"""The memory that this process may still take: what the machine has, and what its groups have."""

from collections.abc import Iterator
from pathlib import Path

import psutil

_GROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 2**60
"""Bytes from which on a limit of cgroup v1 is none."""


def free_memory() -> int:
    """Return the bytes of CPU memory that this process may still take, by machine and group.

    The limit of a control group holds for all groups inside it, so that of every group around this
    process counts.
    """
    free: int = psutil.virtual_memory().available
    try:
        memberships = Path("/proc/self/cgroup").read_text()
    except OSError:
        return free
    return min([free, *left_in_groups(memberships, _GROUPS)])


def left_in_groups(memberships: str, groups: Path) -> Iterator[int]:
    """Yield the bytes that are left in each control group with a limit around a process.

    Args:
        memberships: text of the process's /proc/PID/cgroup.
        groups: folder that the kernel's control groups are mounted at, of version 1 or 2 or both.
    """
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "total_rss"
            yield from _left_around(groups / "memory", path, *names)
        elif not controllers:
            for root in (groups, groups / "unified"):
                yield from _left_around(root, path, "memory.max", "anon")


def _left_around(root: Path, path: str, limit_file: str, in_use: str) -> Iterator[int]:
    """Yield what is left in a group and in those around it, by what the kernel cannot drop.

    A container may see the path that its group has outside, with the group itself as root.
    """
    own = root / path.lstrip("/")
    for folder in (own, *own.parents):
        try:
            limit = (folder / limit_file).read_text().strip()
            statistics = dict(map(str.split, (folder / "memory.stat").read_text().splitlines()))
            if limit != "max" and int(limit) < _UNLIMITED:
                yield max(0, int(limit) - int(statistics[in_use]))
        except (OSError, ValueError, KeyError):
            pass  # no group of this version, or the root, which has no limit
        if folder == root:
            return
