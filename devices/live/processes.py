"""Processes that are restarted when they end, and that end with the process that started them."""

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
from samara.shared.machine import HUGE_PAGES
from samara.shared.rejection import RejectionCode, describe_rejection

OUT_OF_MEMORY = (
    "as the kernel does when memory runs out: free memory, quantize (--set "
    "model.quantization=nf4), or take a smaller model"
)
"""The likely cause of a kill that this command has not asked for, and what to do."""
UNUSABLE_INPUT = 3
"""Exit status of a process whose input is unusable; a restart would not help."""
_REJECTED = 40
"""Exit status of a process that the server turns away, plus the code of the reason."""
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 30.0
"""Seconds. A SuperLink refuses a key for about 60 s after its SuperNode died without a word."""
_STEADY_SECONDS = 90.0
"""Run time after which a failure counts as the first one again."""
_GRACE_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_LOG_LEVEL": "WARNING",
}
"""Variables that turn off Flower's telemetry, update checks and installation of dependencies."""


def module_command(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module of this package."""
    return [sys.executable, "-m", f"samara.devices.live.{module}", *map(str, arguments)]


def child_environment() -> dict[str, str]:
    """Return the environment of child processes."""
    return {**os.environ, **_ENVIRONMENT, **HUGE_PAGES}


def restart_delay(failures: int) -> float:
    """Return the seconds before the restart of a process after consecutive failures."""
    return min(_FIRST_PAUSE * 2.0 ** (failures - 1), _LONGEST_PAUSE) if failures else 0.0


class SupervisedProcess:
    """A process that is restarted when it ends.

    Args:
        name: name in messages.
        command: function that returns the command; called at every start.
        environment: complete environment of the process.
        clock: function that returns monotonic seconds.
        explain: returns the reason of an exit with a positive status, as a sentence; or "".
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], Sequence[str]],
        environment: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
        explain: Callable[[int], str] = lambda status: "",
    ) -> None:
        self.name, self._command, self._clock, self._explain = name, command, clock, explain
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._failures, self._begun, self._due = 0, 0.0, 0.0

    @property
    def running(self) -> bool:
        """Return whether the process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """The exit status if the process has ended; a signal's number is negative."""
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
        """Restart the process if that is due; return a message if it has ended, otherwise ""."""
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
        return f"{what}; restarting {self.name if reason else 'it'} in {pause:g} s"

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
    """Return the exit status of a process that the server turns away."""
    return _REJECTED + code


def describe_exit(status: int) -> str:
    """Return why the server turned a process away that ended with this status; or ""."""
    known = {status_of_rejection(code): code for code in RejectionCode}
    return describe_rejection(known[status]) if status in known else ""


def check_not_revoked(process: SupervisedProcess) -> None:
    """Stop where another try is in vain: the key was revoked.

    Raises:
        RejectedError: if the process ended for that reason.
    """
    if process.exit_status == status_of_rejection(RejectionCode.REVOKED):
        raise RejectedError(describe_rejection(RejectionCode.REVOKED))


def exit_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends; on Linux only.

    Args:
        parent: process id of the parent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit("the parent process has ended")


def is_run_finished(process: SupervisedProcess) -> bool:
    """Return whether the process ended since the server said that the run is finished."""
    return process.exit_status == status_of_rejection(RejectionCode.FINISHED)


@contextmanager
def exclusive_lock(file: Path, what: str, patience: float = 0.0) -> Iterator[None]:
    """Hold a lock file for the duration of a block.

    Args:
        file: lock file; created if missing.
        what: others do who hold it, for the message.
        patience: seconds to wait for another process to release it.

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
    """Keep the client of a folder from running for the duration of a block.

    Raises:
        DeviceError: if it is running.
    """
    running = "this client is running; end its `samara client up`, `ask` or `serve` first"
    with (
        exclusive_lock(folder / UP_LOCK, running),
        exclusive_lock(folder / TRAINER_LOCK, running),
    ):
        yield
