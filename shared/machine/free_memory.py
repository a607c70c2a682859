"""Memory that this process may still allocate, limited by the machine and its control groups."""

from collections.abc import Iterator
from pathlib import Path

import psutil

_GROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 2**60
"""Limit in bytes at which a cgroup v1 group counts as unlimited."""


def free_memory() -> int:
    """Return the bytes of CPU memory that this process may still allocate.

    A control group's limit applies to all groups inside it, so every group around this process
    counts.
    """
    free: int = psutil.virtual_memory().available
    try:
        memberships = Path("/proc/self/cgroup").read_text()
    except OSError:
        return free
    return min([free, *left_in_groups(memberships, _GROUPS)])


def left_in_groups(memberships: str, groups: Path) -> Iterator[int]:
    """Yield the remaining bytes of each limited control group around a process.

    Args:
        memberships: content of the process's /proc/PID/cgroup.
        groups: mount point of the kernel's control groups, version 1, 2 or both.
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
    """Yield the free bytes of a group and of its parent groups; reclaimable caches count as free.

    A container may see its group's path on the host, although the group is mounted as the root.
    """
    own = root / path.lstrip("/")
    for folder in (own, *own.parents):
        try:
            limit = (folder / limit_file).read_text().strip()
            statistics = dict(map(str.split, (folder / "memory.stat").read_text().splitlines()))
            if limit != "max" and int(limit) < _UNLIMITED:
                yield max(0, int(limit) - int(statistics[in_use]))
        except (OSError, ValueError, KeyError):
            pass  # no control group of this version, or the root group, which has no limit
        if folder == root:
            return
