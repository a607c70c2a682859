"""Memory that bites: a command runs in a process of its own that the kernel ends at a limit.

Three ways, the first that is permitted is taken: a group of cgroup v1 or of cgroup v2, made
directly, or ``systemd-run --scope``. Where none is, the process is watched and ended a moment after
it passes the limit; that misses short peaks, and is said. A unified memory is shared by everything
on the device, so the limit of a client is `DeviceProfile.usable_bytes`.
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
from itertools import count
from pathlib import Path

import psutil

from shared.errors import DeviceError

_GROUPS = Path("/sys/fs/cgroup")
_NUMBERS = count()
_WATCH_SECONDS = 0.02
_ENTER = 'echo $$ > "$0" && exec "$@"'

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LimitedRunResult:
    """How a capped command ended.

    Attributes:
        killed: whether the limit ended it.
        status: of the process; the negative number of a signal.
        step: the last that it reported; None before the first.
        peak_bytes: the most that it was seen to take; files that the kernel keeps in memory and
            can drop are not counted.
        limit_bytes: that it had.
        enforced_by: cgroup v1, cgroup v2, systemd, or monitor.
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
    """A way to hold a process to a number of bytes."""

    name: str

    def __init__(self, limit_bytes: int) -> None:
        """Prepare.

        Raises:
            OSError: if this way is not permitted here.
        """
        self.limit_bytes = limit_bytes

    @abstractmethod
    def command(self, command: Sequence[str]) -> list[str]:
        """The command that runs a command under the limit."""

    @abstractmethod
    def watch(self, process: subprocess.Popen[str]) -> None:
        """Look after the process from a thread until it ends."""

    @abstractmethod
    def peak_bytes(self) -> int:
        """The most that was taken so far."""

    @abstractmethod
    def killed(self, status: int) -> bool:
        """Whether the limit ended a process that ended with this status."""

    @abstractmethod
    def close(self) -> None:
        """Leave nothing behind."""


class _CgroupLimit(MemoryLimit):
    """A control group of its own, made directly."""

    limit_file: str
    kills_file: str
    anonymous: str

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self._peak = 0
        self.folder = self.parent() / f"samara-{os.getpid()}-{next(_NUMBERS)}"
        self.folder.mkdir()
        try:
            (self.folder / self.limit_file).write_text(str(limit_bytes))
            self.forbid_swap()
        except OSError:
            self.folder.rmdir()
            raise

    @abstractmethod
    def parent(self) -> Path:
        """The group that this process is in, if it may make groups in it."""

    @abstractmethod
    def forbid_swap(self) -> None:
        """Boards have none that would be worth it."""

    def command(self, command: Sequence[str]) -> list[str]:
        """A shell enters the group and becomes the command."""
        return ["/bin/sh", "-c", _ENTER, str(self.folder / "cgroup.procs"), *command]

    def watch(self, process: subprocess.Popen[str]) -> None:
        """Sample anonymous memory; the kernel's own peak counts files that it merely keeps."""
        while process.poll() is None:
            self._peak = max(self._peak, self._numbers("memory.stat").get(self.anonymous, 0))
            time.sleep(_WATCH_SECONDS)

    def peak_bytes(self) -> int:
        """The largest that was sampled."""
        return self._peak

    def killed(self, status: int) -> bool:
        """Whether the process failed and the kernel killed something in its group."""
        return status != 0 and self._numbers(self.kills_file).get("oom_kill", 0) > 0

    def _numbers(self, file: str) -> dict[str, int]:
        lines = (self.folder / file).read_text().splitlines()
        return {name: int(number) for name, number in map(str.split, lines)}

    def close(self) -> None:
        """End what is left in the group and remove it."""
        for pid in (self.folder / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        # The kernel empties a group a moment after its processes are gone.
        for wait in (0.01, 0.1, 1.0, 5.0, None):
            try:
                self.folder.rmdir()
                return
            except OSError:
                if wait is None:
                    raise
                time.sleep(wait)


def _current_cgroup(controllers: str) -> str:
    """The path of this process's group in a hierarchy, as /proc/self/cgroup gives it."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controllers in names.split(","):
            return path.lstrip("/")
    raise FileNotFoundError(f"this process is in no group of {controllers or 'cgroup v2'}")


class CgroupV1Limit(_CgroupLimit):
    """A group of the memory controller of cgroup v1."""

    name = "cgroup v1"
    limit_file = "memory.limit_in_bytes"
    kills_file = "memory.oom_control"
    anonymous = "total_rss"

    def parent(self) -> Path:
        """Of the memory hierarchy."""
        return _GROUPS / "memory" / _current_cgroup("memory")

    def forbid_swap(self) -> None:
        """Memory and swap together get the same limit, if the kernel counts swap."""
        with suppress(FileNotFoundError, PermissionError):
            (self.folder / "memory.memsw.limit_in_bytes").write_text(str(self.limit_bytes))


class CgroupV2Limit(_CgroupLimit):
    """A group of cgroup v2, whose parent must hand the memory controller down."""

    name = "cgroup v2"
    limit_file = "memory.max"
    kills_file = "memory.events"
    anonymous = "anon"

    def parent(self) -> Path:
        """Of the unified hierarchy."""
        root = _GROUPS if (_GROUPS / "cgroup.controllers").exists() else _GROUPS / "unified"
        return root / _current_cgroup("")

    def forbid_swap(self) -> None:
        """None at all, if the kernel counts it."""
        with suppress(FileNotFoundError, PermissionError):
            (self.folder / "memory.swap.max").write_text("0")


class PollingLimit(MemoryLimit):
    """Watches the resident memory of a process and its children, and ends them past the limit."""

    name = "monitor"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self._peak, self._over = 0, False

    def command(self, command: Sequence[str]) -> list[str]:
        """Unchanged."""
        return list(command)

    def watch(self, process: subprocess.Popen[str]) -> None:
        """Look every few milliseconds."""
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(process.pid)
            while process.poll() is None:
                family = [root, *root.children(recursive=True)]
                self._peak = max(self._peak, sum(_resident_bytes(member) for member in family))
                if self._limits() and self._peak > self.limit_bytes:
                    self._over = True
                    for member in reversed(family):
                        with suppress(psutil.NoSuchProcess):
                            member.kill()
                    return
                time.sleep(_WATCH_SECONDS)

    def _limits(self) -> bool:
        return True

    def peak_bytes(self) -> int:
        """The largest that was seen."""
        return self._peak

    def killed(self, status: int) -> bool:
        """Whether it was ended here."""
        return self._over

    def close(self) -> None:
        """There is nothing."""


def _resident_bytes(process: psutil.Process) -> int:
    with suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0


class SystemdLimit(PollingLimit):
    """A scope that systemd makes; its memory is watched here, because the scope goes with it."""

    name = "systemd"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        user = [] if os.geteuid() == 0 else ["--user"]
        self._prefix = ["systemd-run", *user, "--scope", "--quiet", "--collect"]
        self._prefix += ["-p", f"MemoryMax={limit_bytes}", "-p", "MemorySwapMax=0", "--"]
        if shutil.which("systemd-run") is None:
            raise FileNotFoundError("there is no systemd-run")
        tried = subprocess.run([*self._prefix, "true"], capture_output=True, text=True, check=False)
        if tried.returncode:
            raise PermissionError(
                tried.stderr.strip().splitlines()[0] if tried.stderr else "refused"
            )

    def command(self, command: Sequence[str]) -> list[str]:
        """In a scope."""
        return [*self._prefix, *command]

    def _limits(self) -> bool:
        return False

    def killed(self, status: int) -> bool:
        """A scope's process that is killed from outside had too much."""
        return status in (-signal.SIGKILL, 128 + signal.SIGKILL)


KERNEL_LIMITS: tuple[type[MemoryLimit], ...] = (CgroupV1Limit, CgroupV2Limit, SystemdLimit)
"""Those that the kernel enforces."""


@contextmanager
def memory_limit(limit_bytes: int) -> Iterator[MemoryLimit]:
    """The strictest limit that is permitted here; nothing of it is left afterwards."""
    refused = []
    for way in KERNEL_LIMITS:
        try:
            limit = way(limit_bytes)
        except OSError as error:
            refused.append(f"{way.name}: {error}")
        else:
            break
    else:
        limit = PollingLimit(limit_bytes)
        log.warning(
            "no limit by the kernel is permitted here (%s); the process is watched instead and "
            "ended when it is seen over the limit, so short peaks pass. Run as root, or in a "
            "user session of systemd",
            "; ".join(refused),
        )
    try:
        yield limit
    finally:
        limit.close()


def run_with_memory_limit(
    command: Sequence[str], limit_bytes: int, on_line: Callable[[str], None] = lambda line: None
) -> LimitedRunResult:
    """Run a command under a memory limit until it ends or is ended.

    Args:
        command: its standard output is read line by line; a line of JSON with the key ``step``
            says that this step is done.
        limit_bytes: of memory, everything that the process and its children take.
        on_line: called with every line.

    Raises:
        DeviceError: if the command cannot be started.
    """
    if limit_bytes <= 0:
        raise DeviceError(f"a limit of {limit_bytes} bytes leaves nothing to run in")
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
        said = json.loads(line)
    except ValueError:
        return before
    step = said.get("step") if isinstance(said, dict) else None
    return step if isinstance(step, int) else before
