"""Control groups of the kernel: their folders, and the processes in them."""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
GROUP_NAME = "samara-{owner}-{number}"
"""Name of a control group, with the process id of its creator."""
_ENTER = 'echo $$ > "$0" && exec "$@"'


def current_group(controllers: str) -> str:
    """Return the path of this process's group in a hierarchy, read from /proc/self/cgroup."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controllers in names.split(","):
            return path.lstrip("/")
    raise FileNotFoundError(f"this process has no control group in {controllers or 'cgroup v2'}")


def enter_group(group: Path, command: Sequence[str]) -> list[str]:
    """Return a shell command that enters a control group and then executes the given command."""
    return ["/bin/sh", "-c", _ENTER, str(group / "cgroup.procs"), *command]


def processes_of(group: Path) -> list[int]:
    """Return the ids of the processes in a control group and its subgroups."""
    files = [group, *(path for path in group.glob("*/") if path.is_dir())]
    return [int(pid) for file in files for pid in (file / "cgroup.procs").read_text().split()]


def remove_group(group: Path) -> None:
    """Kill the remaining processes of a control group, and remove the group."""
    # The kernel empties a group a moment after its processes end.
    for wait in (0.01, 0.1, 1.0, 5.0, None):
        try:
            for pid in processes_of(group):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for inner in group.glob("*/"):
                inner.rmdir()
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            if wait is None:
                raise
            time.sleep(wait)
