"""Runs any command within the memory, processor speed and link of a device, on this machine.

Pure functions plan the limits. A line is printed for each limit, even if this machine does not
permit the limit.
"""

import math
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from types import FrameType

import numpy as np

from samara.devices.hardware.cpu_limit import LEAST_CORES, CpuLimit, limit_cpu
from samara.devices.hardware.leftovers import caretaker
from samara.devices.hardware.link_shaping import ShapedLink, shape_link, slow_link
from samara.devices.hardware.memory_limit import MemoryLimit, PollingLimit, memory_limit
from samara.devices.hardware.profile import DeviceProfile, LinkProfile
from samara.shared.errors import DeviceError
from samara.shared.machine.process import cores

_WIDTH = 1_024
_TRIALS = 5


@dataclass(frozen=True)
class Hold:
    """The limits under which a command runs as if on a device.

    Attributes:
        device: name of the device profile.
        limit_bytes: limit of the memory in bytes.
        cores: number of this machine's cores that are as fast as the device.
        link: link, with its durations multiplied by the dilation; None leaves the command on this
            machine's network.
        dilation: seconds on this machine per second of the device.
    """

    device: str
    limit_bytes: int
    cores: float
    link: LinkProfile | None
    dilation: float = 1.0


def check_dilation_is_number(dilation: float) -> None:
    """Raise an error for an invalid time dilation.

    Raises:
        DeviceError: if the dilation is not a finite number of at least 1.
    """
    if not 1 <= dilation < math.inf:
        raise DeviceError(f"--dilation {dilation:g}: give a finite number of at least 1")


def machine_rate() -> float:
    """Measure the fp32 operations/s of this machine's matrix products, on all cores."""
    matrix = np.ones((_WIDTH, _WIDTH), np.float32)
    matrix @ matrix
    best = min(_timed(lambda: matrix @ matrix) for _ in range(_TRIALS))
    return 2 * _WIDTH**3 / best


def _timed(work: Callable[[], object]) -> float:
    begun = perf_counter()
    work()
    return perf_counter() - begun


def plan_hold(
    device: DeviceProfile,
    link: LinkProfile | None,
    dilation: float,
    rate: float,
    machine_cores: int,
) -> Hold:
    """Plan the limits of a command.

    Args:
        device: device profile.
        link: link profile; None leaves the command on this machine's network.
        dilation: seconds on this machine per second of the device, at least 1.
        rate: fp32 operations/s of this machine on all cores.
        machine_cores: number of this machine's cores.

    Raises:
        DeviceError: if the device is faster than this machine even with the dilation, or the
            dilation is invalid.
    """
    check_dilation_is_number(dilation)
    relative = device.compute.fp32 * device.timing.rate_share / rate
    if relative > dilation:
        raise DeviceError(
            f"{device.name} is {relative:.1f} times as fast as this machine at matrix products; "
            f"set --dilation, the seconds here per second of the device, to at least "
            f"{relative * 1.005:.1f}"
        )
    share = max(LEAST_CORES, machine_cores * relative / dilation)
    slowed = None if link is None else slow_link(link, dilation)
    return Hold(device.name, device.usable_bytes, share, slowed, dilation)


@dataclass(frozen=True)
class Held:
    """The active limits of processes that run as if on a device.

    Attributes:
        memory: limit of their memory.
        link: namespace behind their link; None leaves them on this machine's network.
        processor: limit of their processor time; None if this machine permits none.
    """

    memory: MemoryLimit
    link: ShapedLink | None
    processor: CpuLimit | None

    def command(self, command: Sequence[str], *, slowed: bool) -> list[str]:
        """Return the given command wrapped to run under the limits.

        Args:
            command: command and its arguments.
            slowed: whether to limit the command's processor time from the start.
        """
        # The command enters the namespace last, because control groups are invisible inside it.
        held = self.link.command(command) if self.link else list(command)
        if slowed and self.processor:
            held = self.processor.command(held)
        return self.memory.command(held)


@contextmanager
def held(hold: Hold, say: Callable[[str], None]) -> Iterator[Held]:
    """Set up the limits of a device for a ``with`` block, and remove them afterwards.

    Args:
        hold: planned limits.
        say: function that is called with a line about each limit.

    Raises:
        DeviceError: if links cannot be shaped on this machine.
    """
    with ExitStack() as undo:
        memory = undo.enter_context(memory_limit(hold.limit_bytes))
        say(f"memory: {hold.limit_bytes / 2**20:,.0f} MiB of {hold.device}, by {memory.name}")
        link = None
        if hold.link is not None:
            link = undo.enter_context(shape_link(hold.link))
            say(describe_link(hold.link, link.address, link.has_netem))
        processor = None
        try:
            processor = limit_cpu(memory, hold.cores)
        except OSError as error:
            say(
                f"processor: not limited, because this machine permits no processor limit "
                f"({error.strerror})"
            )
        else:
            undo.callback(processor.close)
            slower = (
                f", {hold.dilation:g} s here per second of the device" if hold.dilation > 1 else ""
            )
            say(
                f"processor: {hold.cores:.2f} of {cores()} cores, as fast as {hold.device}"
                f"{slower}, by {processor.name}"
            )
        yield Held(memory, link, processor)


def run_held(hold: Hold, command: Sequence[str], say: Callable[[str], None]) -> int:
    """Run a command to completion and return its exit status.

    The status is the negative number of the signal if a signal ended the command.

    SIGTERM is passed on to the command. A terminal's Ctrl-C reaches the command directly.

    Args:
        hold: planned limits.
        command: command and its arguments.
        say: function that is called with a line about each limit, and about the outcome.

    Raises:
        DeviceError: if the command cannot be started, or links cannot be shaped on this machine.
    """
    with caretaker() as keeper, held(hold, say) as limits:
        memory = limits.memory
        try:
            process = subprocess.Popen(limits.command(command, slowed=True), text=True)
        except OSError as error:
            raise DeviceError(f"{command[0]}: cannot be started: {error.strerror}") from error
        if isinstance(memory, PollingLimit):
            keeper.watch(process.pid)
        watcher = threading.Thread(target=memory.watch, args=(process,), daemon=True)
        watcher.start()
        try:
            with _signals_passed_on(process):
                status = process.wait()
        finally:
            process.kill()
        watcher.join()
        if memory.killed(status) or memory.kills():
            say(
                f"the command was killed by the memory limit of {hold.limit_bytes / 2**20:,.0f} MiB"
            )
        say(f"peak memory: {memory.peak_bytes() / 2**20:,.0f} MiB")
        return status


def describe_link(link: LinkProfile, address: str, has_netem: bool) -> str:
    """Return a line about a shaped link.

    Args:
        link: link, with its durations multiplied by the dilation.
        address: address of this machine on the link.
        has_netem: whether latency, jitter and loss are applied.
    """
    rates = f"{link.down * 8e-6:g} Mbit/s down, {link.up * 8e-6:g} up"
    rest = (
        f"{link.latency * 1e3:g} ms, {link.loss:.1%} lost"
        if has_netem
        else "without latency and loss: this kernel has no netem"
    )
    return f"link: {link.name}, {rates}, {rest}; this machine is {address}"


@contextmanager
def _signals_passed_on(process: "subprocess.Popen[str]") -> Iterator[None]:
    """Pass SIGTERM on to a process, and ignore Ctrl-C here, during a ``with`` block."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        process.terminate()

    before = signal.signal(signal.SIGTERM, pass_on), signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


def status_of(status: int) -> int:
    """Return an exit status as a shell reports it: for a signal, 128 plus its number."""
    return status if status >= 0 else 128 + abs(status)
