"""Reliable removal of the control groups, namespaces and disks that limit processes to a device.

The name of each contains the id of the process that created it. That process removes it at the end
of a block. If that process is killed, its `caretaker` removes it. If the caretaker is killed too,
the next process that creates limits removes it.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from samara.devices.hardware.control_groups import GROUPS, current_group, remove_group
from samara.devices.hardware.own_disk import DISK_SUFFIX, unmount

_NAME = re.compile(r"samara-(\d+)-\d+")
_HIERARCHIES = ("memory", "cpu", "blkio")
_FINISHED = "finished"
_DELETED = " (deleted)"
"""Suffix that the kernel adds to the name of a mounted file that has been deleted."""


def find_groups() -> dict[Path, int]:
    """Return the control groups of Samara's processes, with the process ids of their creators."""
    parents = {GROUPS / "unified", GROUPS}
    for controllers in _HIERARCHIES:
        with suppress(OSError):
            parents.add(GROUPS / controllers / current_group(controllers))
    with suppress(OSError):
        parents |= {root / current_group("") for root in (GROUPS, GROUPS / "unified")}
    return {
        path: int(found[1])
        for parent in parents
        for path in parent.glob("samara-*-*")
        if (found := _NAME.fullmatch(path.name))
    }


def find_namespaces() -> dict[str, int]:
    """Return the network namespaces of shaped links, with the process ids of their creators."""
    folder = Path("/run/netns")
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return {name: int(found[1]) for name in names if (found := _NAME.fullmatch(name))}


def find_disks() -> dict[Path, int]:
    """Return the files mounted as separate disks, with the process ids of their creators."""
    backing = Path("/sys/block").glob("loop*/loop/backing_file")
    files = [Path(file.read_text().strip().removesuffix(_DELETED)) for file in backing]
    return {
        file: int(found[1])
        for file in files
        if file.suffix == DISK_SUFFIX and (found := _NAME.fullmatch(file.stem))
    }


def _remove_disk(file: Path) -> None:
    """Unmount a disk everywhere it is mounted, and delete its file."""
    for partition in psutil.disk_partitions(all=True):
        backing = Path("/sys/block") / Path(partition.device).name / "loop" / "backing_file"
        with suppress(OSError):
            if backing.read_text().strip().removesuffix(_DELETED) == str(file):
                unmount(Path(partition.mountpoint))
    file.unlink(missing_ok=True)


def remove_leftovers(owner: int | None = None) -> None:
    """Remove the leftovers of a process, or by default of all processes that have ended."""

    def is_left(of: int) -> bool:
        return of == owner if owner is not None else not psutil.pid_exists(of)

    for group, of in find_groups().items():
        if is_left(of):
            with suppress(OSError):
                remove_group(group)
    for namespace, of in find_namespaces().items():
        if is_left(of):  # the kernel removes the link with its namespace
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
    for disk, of in find_disks().items():
        if is_left(of):
            _remove_disk(disk)


class Caretaker:
    """A child process that removes its parent's leftovers if the parent is killed.

    Args:
        process: the running caretaker process.
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def watch(self, process: int) -> None:
        """Tell the caretaker to end a process and its children if the parent is killed."""
        self._tell(str(process))

    def release(self) -> None:
        """End the caretaker after everything has been removed."""
        self._tell(_FINISHED)
        self._process.communicate()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None, "it is a pipe"
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()


@contextmanager
def caretaker() -> Iterator[Caretaker]:
    """Remove leftovers of killed processes, and start this process's caretaker for a block."""
    remove_leftovers()
    process = subprocess.Popen(
        [sys.executable, "-m", "samara.devices.hardware.leftovers", str(os.getpid())],
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    made = Caretaker(process)
    try:
        yield made
    finally:
        made.release()


def main() -> None:
    """Wait until standard input closes, and remove the leftovers of the process given as argument.

    Each line of standard input is the id of a process to kill first, with its children. The line
    "finished" means that no leftovers exist.
    """
    watched = set[int]()
    for line in map(str.strip, sys.stdin):
        if line == _FINISHED:
            return
        watched.add(int(line))
    for watch in watched:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(watch)
            for member in [*process.children(recursive=True), process]:
                member.kill()
    remove_leftovers(int(sys.argv[1]))


if __name__ == "__main__":
    main()
