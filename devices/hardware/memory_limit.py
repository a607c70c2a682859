"""An enforced memory limit for a command: the kernel kills the command's process at the limit.

The first permitted kind of limit is used: a control group of cgroup v1, a control group of cgroup
v2, or ``systemd-run --scope``. If none is permitted, the process's memory is polled, and the
process is ended soon after it exceeds the limit. Polling misses short peaks, so a warning is
logged. A client does not have a device's whole memory, so its limit is
`DeviceProfile.usable_bytes`.
"""

import json
import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

import psutil

from samara.devices.hardware.control_groups import (
    GROUP_NAME,
    GROUPS,
    current_group,
    enter_group,
    remove_group,
)
from samara.shared.errors import DeviceError

_NUMBERS = count()
_WATCH_SECONDS = 0.02
_LEAST_MARGIN = 16 * 2**20
"""Minimum margin in bytes between the memory in use and a lowered limit."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LimitedRunResult:
    """The result of running a command under a memory limit.

    Attributes:
        killed: whether the limit ended the process.
        status: exit status of the process, or the negative number of the signal that ended it.
        step: last step that the command reported; None if it reported none.
        peak_bytes: largest sampled memory in bytes, without cached files that the kernel can drop.
        limit_bytes: memory limit of the run in bytes.
        enforced_by: ``cgroup v1``, ``cgroup v2``, ``systemd``, or ``polling``.
    """

    killed: bool
    status: int
    step: int | None
    peak_bytes: int
    limit_bytes: int
    enforced_by: str

    def __str__(self) -> str:
        where = "before its first step" if self.step is None else f"after step {self.step}"
        what = f"killed by the memory limit {where}" if self.killed else f"ended {where}"
        return (
            f"{what}: peak {self.peak_bytes / 2**20:,.0f} of {self.limit_bytes / 2**20:,.0f} MiB "
            f"({self.enforced_by})"
        )


class MemoryLimit(ABC):
    """A kind of memory limit for one process and its children."""

    name: str

    def __init__(self, limit_bytes: int) -> None:
        """Set up the limit.

        Raises:
            OSError: if this kind of limit is not permitted on this machine.
        """
        self.limit_bytes = limit_bytes

    @abstractmethod
    def command(self, command: Sequence[str]) -> list[str]:
        """Return the given command wrapped to run under the limit."""

    @abstractmethod
    def watch(self, process: subprocess.Popen[str]) -> None:
        """Sample the process's memory until the process ends; runs in a thread."""

    @abstractmethod
    def peak_bytes(self) -> int:
        """Return the largest memory sampled so far, in bytes."""

    @abstractmethod
    def killed(self, status: int) -> bool:
        """Return whether the limit ended a process with this exit status."""

    def kills(self) -> int:
        """Return the number of processes that the kernel has killed at the limit; 0 if unknown."""
        return 0

    @abstractmethod
    def close(self) -> None:
        """Remove the limit."""


class CgroupLimit(MemoryLimit):
    """A limit by a newly created control group."""

    limit_file: str
    kills_file: str
    anonymous: str

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self._peak = 0
        name = GROUP_NAME.format(owner=os.getpid(), number=next(_NUMBERS))
        self.folder = self.entrance = self.parent() / name
        self.folder.mkdir()
        try:
            (self.folder / self.limit_file).write_text(str(limit_bytes))
            self.forbid_swap()
        except OSError:
            self.folder.rmdir()
            raise

    @abstractmethod
    def parent(self) -> Path:
        """Return the folder of this process's group, which will contain the new group."""

    @abstractmethod
    def forbid_swap(self) -> None:
        """Disable swap for the group, because boards have hardly any."""

    def command(self, command: Sequence[str]) -> list[str]:
        """Return a shell command that enters the group and then executes the given command."""
        return enter_group(self.entrance, command)

    def watch(self, process: subprocess.Popen[str]) -> None:
        """Sample anonymous memory; the kernel's own peak would include cached files."""
        while process.poll() is None:
            self._peak = max(self._peak, self._numbers("memory.stat").get(self.anonymous, 0))
            time.sleep(_WATCH_SECONDS)

    def peak_bytes(self) -> int:
        """Return the largest sampled memory in bytes."""
        return self._peak

    def lower(self) -> int:
        """Lower the limit to about the memory in use, and return the bytes in use."""
        in_use = self._numbers("memory.stat").get(self.anonymous, 0)
        margin = _LEAST_MARGIN
        while in_use + margin < self.limit_bytes:
            with suppress(OSError):  # EBUSY: memory that cannot be reclaimed exceeds the limit
                (self.folder / self.limit_file).write_text(str(in_use + margin))
                return in_use
            margin *= 2
        return in_use

    def restore(self) -> None:
        """Restore the original limit."""
        (self.folder / self.limit_file).write_text(str(self.limit_bytes))

    def killed(self, status: int) -> bool:
        """Return whether the process failed and the kernel killed a process of its group."""
        return status != 0 and self.kills() > 0

    def kills(self) -> int:
        """Return the number of the group's processes that the kernel has killed."""
        return self._numbers(self.kills_file).get("oom_kill", 0)

    def _numbers(self, file: str) -> dict[str, int]:
        lines = (self.folder / file).read_text().splitlines()
        return {name: int(number) for name, number in map(str.split, lines)}

    def close(self) -> None:
        """Kill the remaining processes of the group, and remove it."""
        remove_group(self.folder)


class CgroupV1Limit(CgroupLimit):
    """A limit by the memory controller of cgroup v1."""

    name = "cgroup v1"
    limit_file = "memory.limit_in_bytes"
    kills_file = "memory.oom_control"
    anonymous = "total_rss"

    def parent(self) -> Path:
        """Return the folder of this process's group in the memory controller's hierarchy."""
        return GROUPS / "memory" / current_group("memory")

    def forbid_swap(self) -> None:
        """Apply the same limit to memory and swap together, if the kernel accounts for swap."""
        with suppress(FileNotFoundError, PermissionError):
            (self.folder / "memory.memsw.limit_in_bytes").write_text(str(self.limit_bytes))


class CgroupV2Limit(CgroupLimit):
    """A limit by cgroup v2, whose parent group must delegate the memory controller.

    Processes run in a subgroup, because cgroup v2 allows no processes in a group that delegates
    controllers.
    """

    name = "cgroup v2"
    limit_file = "memory.max"
    kills_file = "memory.events"
    anonymous = "anon"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        for controller in ("+cpu", "+io"):
            with suppress(OSError):  # the controller may not be delegated to this user
                (self.folder / "cgroup.subtree_control").write_text(controller)
        self.entrance = self.folder / "processes"
        self.entrance.mkdir()

    def parent(self) -> Path:
        """Return the folder of this process's group in the unified hierarchy."""
        root = GROUPS if (GROUPS / "cgroup.controllers").exists() else GROUPS / "unified"
        return root / current_group("")

    def forbid_swap(self) -> None:
        """Forbid swap, if the kernel accounts for it."""
        with suppress(FileNotFoundError, PermissionError):
            (self.folder / "memory.swap.max").write_text("0")


class PollingLimit(MemoryLimit):
    """A limit by polling the memory of a process and its children, without cached files."""

    name = "polling"
    ends_processes = True

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self._peak = 0
        self._over = False

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command unchanged."""
        return list(command)

    def watch(self, process: subprocess.Popen[str]) -> None:
        """Sample anonymous memory, and end the processes when it exceeds the limit."""
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(process.pid)
            while process.poll() is None:
                family = [root, *root.children(recursive=True)]
                self._peak = max(self._peak, sum(_anonymous_bytes(member) for member in family))
                if self.ends_processes and self._peak > self.limit_bytes:
                    self._over = True
                    for member in reversed(family):
                        with suppress(psutil.NoSuchProcess):
                            member.kill()
                    return
                time.sleep(_WATCH_SECONDS)

    def peak_bytes(self) -> int:
        """Return the largest sampled memory in bytes."""
        return self._peak

    def killed(self, status: int) -> bool:
        """Return whether this limit ended the process."""
        return self._over

    def close(self) -> None:
        """Do nothing; polling leaves nothing behind."""


def _anonymous_bytes(process: psutil.Process) -> int:
    """Return a process's memory in bytes, without cached files that the kernel can drop."""
    with suppress(psutil.NoSuchProcess):
        memory = process.memory_info()
        return int(memory.rss) - int(getattr(memory, "shared", 0))
    return 0


class SystemdLimit(PollingLimit):
    """A limit by a systemd scope. Memory is sampled here, because a scope ends with its process."""

    name = "systemd"
    ends_processes = False

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        user = [] if os.geteuid() == 0 else ["--user"]
        self._prefix = ["systemd-run", *user, "--scope", "--quiet", "--collect"]
        self._prefix += ["-p", f"MemoryMax={limit_bytes}", "-p", "MemorySwapMax=0", "--"]
        if shutil.which("systemd-run") is None:
            raise FileNotFoundError("systemd-run is not installed")
        trial = subprocess.run([*self._prefix, "true"], capture_output=True, text=True, check=False)
        if trial.returncode:
            raise PermissionError(
                trial.stderr.strip().splitlines()[0] if trial.stderr else "refused"
            )

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the given command wrapped to run in a scope."""
        return [*self._prefix, *command]

    def killed(self, status: int) -> bool:
        """Return whether the process was killed.

        In a scope, the limit is assumed to be the cause.
        """
        return status in (-signal.SIGKILL, 128 + signal.SIGKILL)


KERNEL_LIMITS: tuple[type[MemoryLimit], ...] = (CgroupV1Limit, CgroupV2Limit, SystemdLimit)
"""Kinds of limits that the kernel enforces, in order of preference."""


@contextmanager
def memory_limit(limit_bytes: int) -> Iterator[MemoryLimit]:
    """Set up the first permitted kind of limit for a ``with`` block."""
    errors = []
    for kind in KERNEL_LIMITS:
        try:
            limit = kind(limit_bytes)
        except OSError as error:
            errors.append(f"{kind.name}: {error.strerror or error}")
        else:
            break
    else:
        limit = PollingLimit(limit_bytes)
        _say_that_it_is_polled("; ".join(errors))
    try:
        yield limit
    finally:
        limit.close()


@cache
def _say_that_it_is_polled(reasons: str) -> None:
    """Log a warning, only once, that memory is polled because the kernel does not limit it."""
    log.warning(
        "the kernel permits no memory limit (%s); the memory of processes is polled instead, so "
        "short peaks over the limit are missed. Run as root, or in a user session of systemd",
        reasons,
    )


def run_with_memory_limit(
    command: Sequence[str], limit_bytes: int, on_line: Callable[[str], None] = lambda line: None
) -> LimitedRunResult:
    """Run a command under a memory limit until it ends.

    Args:
        command: command whose standard output is read line by line; a JSON object with the key
            ``step`` reports the completion of that step.
        limit_bytes: limit of the memory of the process and its children.
        on_line: function that is called with every line.

    Raises:
        DeviceError: if the command cannot be started.
    """
    if limit_bytes <= 0:
        raise DeviceError(f"the memory limit is {limit_bytes} bytes; set it above 0")
    with memory_limit(limit_bytes) as limit:
        try:
            process = subprocess.Popen(
                limit.command(command), stdout=subprocess.PIPE, text=True, errors="replace"
            )
        except OSError as error:
            raise DeviceError(f"{command[0]}: cannot be started: {error.strerror}") from error
        step = None
        with process:
            watcher = threading.Thread(target=limit.watch, args=(process,), daemon=True)
            watcher.start()
            try:
                for line in process.stdout or ():
                    step = _parse_step(line, step)
                    on_line(line.rstrip("\n"))
                status = process.wait()
            finally:
                process.kill()
            watcher.join()
        return LimitedRunResult(
            limit.killed(status), status, step, limit.peak_bytes(), limit_bytes, limit.name
        )


def _parse_step(line: str, before: int | None) -> int | None:
    try:
        message = json.loads(line)
    except ValueError:
        return before
    step = message.get("step") if isinstance(message, dict) else None
    return step if isinstance(step, int) else before
