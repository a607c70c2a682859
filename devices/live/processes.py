"""Processes that are kept up, and that do not outlive who started them."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from shared.errors import DeviceError

UNUSABLE_INPUT = 3
"""Exit status of a process that was told something wrong; starting it again would not help."""
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 30.0
"""Seconds. A SuperLink refuses a key for about 60 s after its SuperNode died without a word."""
_STEADY_SECONDS = 90.0
"""A process that lasted so long failed anew, not again."""
_GRACE_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1


def restart_delay(failures: int) -> float:
    """Seconds before a process is started again that has failed so often in a row."""
    return min(_FIRST_PAUSE * 2.0 ** (failures - 1), _LONGEST_PAUSE) if failures else 0.0


class SupervisedProcess:
    """A process that is started again when it ends.

    Args:
        name: for the operator.
        command: gives the command; called for every start.
        environment: all of it.
        clock: monotonic seconds.
        hint: what it may be when it ends with an error of its own.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], Sequence[str]],
        environment: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
        hint: str = "",
    ) -> None:
        self.name, self._command, self._clock, self._hint = name, command, clock, hint
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._failures, self._begun, self._due = 0, 0.0, 0.0

    @property
    def running(self) -> bool:
        """Whether it is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """Of the last time it ended; negative is a signal."""
        return self._process.poll() if self._process else None

    def start(self) -> None:
        """Start it, in a session of its own so that a terminal's Ctrl-C reaches it through us."""
        self._begun = self._clock()
        self._process = subprocess.Popen(
            list(self._command()),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def restart_if_due(self) -> str:
        """Start it again if that is due; returns what the operator should know, mostly nothing."""
        if self._process is None:
            if self._clock() >= self._due:
                self.start()
            return ""
        status = self._process.poll()
        if status is None:
            return ""
        steady = self._clock() - self._begun >= _STEADY_SECONDS
        self._failures = 1 if steady else self._failures + 1
        pause = restart_delay(self._failures)
        self._process, self._due = None, self._clock() + pause
        hint = f"; {self._hint}" if self._hint and status > 0 else ""
        return f"{self.name} ended with status {status}; it is started again in {pause:g} s{hint}"

    def terminate(self) -> None:
        """Send SIGTERM to it and what it started."""
        self._signal(signal.SIGTERM)

    def end(self) -> None:
        """Wait for it to end; kill it, and whatever it started, when it takes too long."""
        if self._process is None:
            return
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)


def exit_with_parent(parent: int) -> None:
    """Have the kernel end this process when the one that started it is gone; on Linux.

    Args:
        parent: id of that process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone")


@contextmanager
def exclusive_lock(file: Path, what: str, patience: float = 0.0) -> Iterator[None]:
    """Hold a lock file.

    Args:
        file: made if it is not there.
        what: others do who hold it, for the message.
        patience: seconds to wait for one that is just ending.

    Raises:
        DeviceError: if another process holds it.
    """
    try:
        lock = FileLock(file, mode=0o600).acquire(timeout=patience)
    except Timeout:
        raise DeviceError(f"{file.parent}: {what}") from None
    with lock:
        yield
