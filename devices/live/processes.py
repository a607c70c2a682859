"""Child processes that are restarted when they end, and that end with their parent."""

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

from samara.devices.live.client_folder import TRAINER_LOCK, UP_LOCK
from samara.shared.errors import DeviceError, RejectedError
from samara.shared.machine.process import HUGE_PAGES
from samara.shared.network.rejection import RejectionCode, describe_rejection

OUT_OF_MEMORY = (
    "as the kernel does when memory runs out: free memory, quantize (--set "
    "model.quantization=nf4), or use a smaller model"
)
"""Likely cause and remedy if something other than Samara killed a process."""
UNUSABLE_INPUT = 3
"""Exit status of a process whose input is unusable, so that a restart would not help."""
_REJECTED = 40
"""Base of the exit statuses of rejected processes; the code of the reason is added to it."""
_FIRST_PAUSE = 2.0
"""Delay before the first restart of a process, in seconds."""
_LONGEST_PAUSE = 30.0
"""Maximum delay before a restart, in seconds.

A SuperLink refuses a key for about 60 s after its SuperNode was killed.
"""
_STEADY_SECONDS = 90.0
"""Run time in seconds after which the count of consecutive failures starts again from zero."""
_GRACE_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_LOG_LEVEL": "WARNING",
}
"""Environment variables that turn off Flower's telemetry, updates and dependency installation."""


def module_command(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module of `samara.devices.live`."""
    return [sys.executable, "-m", f"samara.devices.live.{module}", *map(str, arguments)]


def child_environment() -> dict[str, str]:
    """Return the environment of child processes."""
    return {**os.environ, **_ENVIRONMENT, **HUGE_PAGES}


def restart_delay(failures: int) -> float:
    """Return the delay in seconds before a restart, given the number of consecutive failures."""
    return min(_FIRST_PAUSE * 2.0 ** (failures - 1), _LONGEST_PAUSE) if failures else 0.0


class SupervisedProcess:
    """A process that is restarted when it ends.

    Args:
        name: name in messages.
        command: function that returns the command; called at every start.
        environment: complete environment of the process.
        clock: function that returns monotonic seconds.
        explain: function that explains a positive exit status in a sentence; empty without an
            explanation.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], Sequence[str]],
        environment: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
        explain: Callable[[int], str] = lambda status: "",
    ) -> None:
        self.name = name
        self._command = command
        self._clock = clock
        self._explain = explain
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._failures = 0
        self._begun = 0.0
        self._due = 0.0

    @property
    def running(self) -> bool:
        """True while the process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """The exit status if the process has ended, otherwise None.

        It is the negative number of the signal if a signal ended the process.
        """
        return self._process.poll() if self._process else None

    def start(self) -> None:
        """Start the process in a new session, which a terminal's Ctrl-C does not reach."""
        self._begun = self._clock()
        self._process = subprocess.Popen(
            list(self._command()),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def restart_if_due(self) -> str:
        """Restart the process if due; return a message if it has ended, otherwise ""."""
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
        reason = self._explain(status) if status > 0 else ""
        ended = f"was killed, {OUT_OF_MEMORY}" if status == -signal.SIGKILL else ""
        what = reason or f"{self.name} {ended or f'ended with status {status}'}"
        return f"{what}; {self.name} restarts in {pause:g} s"

    def terminate(self) -> None:
        """Send SIGTERM to the process and its children."""
        self._signal(signal.SIGTERM)

    def end(self) -> None:
        """Wait for the process to end; kill it and its children after 10 s."""
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


def status_of_rejection(code: RejectionCode) -> int:
    """Return the exit status of a process that the server rejects."""
    return _REJECTED + code


def describe_exit(status: int) -> str:
    """Return the server's reason for rejecting a process with this exit status, or ""."""
    known = {status_of_rejection(code): code for code in RejectionCode}
    return describe_rejection(known[status]) if status in known else ""


def check_not_revoked(process: SupervisedProcess) -> None:
    """Raise an error if the key was revoked, because a restart would not help.

    Raises:
        RejectedError: if the process ended because the key was revoked.
    """
    if process.exit_status == status_of_rejection(RejectionCode.REVOKED):
        raise RejectedError(describe_rejection(RejectionCode.REVOKED))


def exit_with_parent(parent: int) -> None:
    """Ask the kernel to end this process when its parent ends.

    This works on Linux only.

    Args:
        parent: process id of the parent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("the parent process has ended")


def is_run_finished(process: SupervisedProcess) -> bool:
    """Return whether the process ended because the server reported that the run is finished."""
    return process.exit_status == status_of_rejection(RejectionCode.FINISHED)


@contextmanager
def exclusive_lock(file: Path, what: str, patience: float = 0.0) -> Iterator[None]:
    """Hold a lock file during a ``with`` block.

    Args:
        file: path of the lock file; created if missing.
        what: sentence of the error message about the process that holds the lock.
        patience: seconds to wait for another process to release the lock.

    Raises:
        DeviceError: if another process holds the lock.
    """
    try:
        lock = FileLock(file, mode=0o600).acquire(timeout=patience)
    except Timeout:
        raise DeviceError(f"{file.parent}: {what}") from None
    with lock:
        yield


@contextmanager
def stopped_client(folder: Path) -> Iterator[None]:
    """Keep a folder's client from starting during a ``with`` block.

    Raises:
        DeviceError: if the client is running.
    """
    running = "this client is running; end its `samara client up`, `ask` or `serve` first"
    with (
        exclusive_lock(folder / UP_LOCK, running),
        exclusive_lock(folder / TRAINER_LOCK, running),
    ):
        yield
