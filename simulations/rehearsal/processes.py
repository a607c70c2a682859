"""The processes of a rehearsal: `samara server up`, and `samara client up` within limits."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from samara.devices.hardware.hold import Held
from samara.devices.hardware.leftovers import Caretaker
from samara.devices.hardware.memory_limit import PollingLimit
from samara.shared.machine.process_ends import wait_for_ends
from samara.simulations.rehearsal.fault_means import FaultMeans
from samara.simulations.rehearsal.plan import PlannedClient

END_SECONDS = 30.0
"""Time limit in seconds for the end of a process after SIGTERM."""
_TRAINED = re.compile(r"answered: train,(?: round \d+,)? ([0-9.]+) s")
_ANSWERED = "samara.device: answered: "
_READY = "trainer ready"
_LOADED = "samara.trainer: ready after"
_KILLED = "the trainer was killed"
_TRAINER = "samara.devices.live.trainer_process"


def samara_command(arguments: Sequence[str]) -> list[str]:
    """Return the command line that runs ``samara`` of this installation with some arguments."""
    return [sys.executable, "-m", "samara", *arguments]


def start_process(
    command: Sequence[str], said: Path, environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    """Start a process that ignores Ctrl-C in this terminal, and append its output to a file."""
    with said.open("ab") as file:
        return subprocess.Popen(
            list(command),
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            text=True,
            start_new_session=True,
        )


def end_process(process: "subprocess.Popen[str]") -> None:
    """Send SIGTERM to a process; kill the process and its children if it does not end in time."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        kill_family(process)


def kill_family(process: "subprocess.Popen[Any]") -> None:
    """Kill a process and its children without warning, as a power cut does; wait for their end."""
    family: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(process.pid)
        family = [root, *root.children(recursive=True)]
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()
    wait_for_ends(family, END_SECONDS)


class RehearsedClient:
    """The processes of a client, under the limits of its device.

    Args:
        plan: planned limits of the client.
        limits: active limits.
        means: mechanisms for the client's faults.
        said: path of the file for the client's output.
        keeper: caretaker that ends the client's processes if this process is killed.

    Attributes:
        plan: planned limits of the client.
        limits: active limits.
        means: mechanisms for the client's faults.
        arguments: arguments of `samara client up`.
        died: reason why the client ended before the run; empty otherwise.
        has_power: whether the client is not in a power cut.
    """

    def __init__(
        self,
        plan: PlannedClient,
        limits: Held,
        means: FaultMeans,
        said: Path,
        keeper: Caretaker,
    ) -> None:
        self.plan = plan
        self.limits = limits
        self.means = means
        self._said = said
        self._keeper = keeper
        self.arguments: Sequence[str] = ()
        self.died = ""
        self.has_power = False
        self._lacks_memory = False
        self._process: subprocess.Popen[str] | None = None
        self._watcher: threading.Thread | None = None
        self._slowed = self._kills_of_faults = 0

    def start(self) -> None:
        """Start or restart `samara client up`."""
        command = self.limits.command(samara_command(self.arguments), slowed=False)
        command = self.means.command(command)
        self._process = start_process(command, self._said, self.means.environment)
        self.has_power = True
        if isinstance(self.limits.memory, PollingLimit):
            self._keeper.watch(self._process.pid)
        watch = self.limits.memory.watch
        self._watcher = threading.Thread(target=watch, args=(self._process,), daemon=True)
        self._watcher.start()

    def tend(self) -> None:
        """Apply the processor limit to the trainer once it has loaded its model."""
        loaded = self._text().count(_LOADED)
        trainer = self._trainer() if loaded > self._slowed else None
        if trainer is None or self.limits.processor is None:
            return
        self._slowed = loaded
        with suppress(OSError):  # the trainer may have ended
            self.limits.processor.add(trainer)

    def check(self) -> bool:
        """Return whether the client has died; end the other processes of a dead client."""
        memory = self.limits.memory
        status = self._process.poll() if self._process is not None else None
        has_lacked = self._lacks_memory or memory.kills() == self._kills_of_faults
        if not has_lacked and not self.trained_seconds() and (status or _KILLED in self._text()):
            self.died = (
                "has too little memory: the kernel killed it at its limit of "
                f"{memory.limit_bytes / 2**20:,.0f} MiB before its first report"
            )
            self.end()
        elif status and not self._lacks_memory:
            self.died = f"ended with status {status}: {self.last_words}"
        return bool(self.died)

    def cut_power(self) -> None:
        """Kill every process of the client."""
        self.has_power = False
        if self._process is not None:
            kill_family(self._process)

    def cut_link(self) -> None:
        """Disconnect the client's link."""
        assert self.limits.link is not None, "without links, this fault is refused"
        self.limits.link.cut()

    def mend_link(self) -> None:
        """Reconnect the client's link."""
        assert self.limits.link is not None, "without links, this fault is refused"
        self.limits.link.mend()

    def take_memory(self) -> None:
        """Take memory that the client needs."""
        self._lacks_memory = True
        self.means.take_memory()

    def give_memory(self) -> None:
        """Release the memory that `take_memory` has taken.

        A client that was killed is restarted, as a service manager would do.
        """
        self.means.give_memory()
        self._lacks_memory, self._kills_of_faults = False, self.limits.memory.kills()
        if self.has_power and self._process is not None and self._process.poll():
            self.start()

    def end(self) -> None:
        """End the client's processes."""
        if self._process is not None:
            end_process(self._process)
        if self._watcher is not None:
            self._watcher.join()

    def trained_seconds(self) -> list[float]:
        """Return the seconds that each answer to a train message took on this machine."""
        return [float(seconds) for seconds in _TRAINED.findall(self._text())]

    @property
    def answers(self) -> int:
        """The number of messages that the client has answered."""
        return self._text().count(_ANSWERED)

    @property
    def received(self) -> int:
        """The bytes received over the client's link; 0 without a link."""
        return self.limits.link.traffic()[1] if self.limits.link else 0

    @property
    def last_words(self) -> str:
        """The last line of the client's output."""
        lines = self._text().strip().splitlines()
        return lines[-1] if lines else "nothing yet"

    @property
    def was_ready(self) -> bool:
        """Return whether the client's trainer has been ready at least once."""
        return _READY in self._text()

    def _text(self) -> str:
        return self._said.read_text(errors="replace") if self._said.exists() else ""

    def _trainer(self) -> int | None:
        if self._process is None:
            return None
        with suppress(psutil.NoSuchProcess):
            for one in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if _TRAINER in one.cmdline():
                        return int(one.pid)
        return None
