"""The means of a client's faults: a disk of its own, a clock, a shortage of memory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from samara.devices.hardware.disk_limit import DiskLimit, limit_disk
from samara.devices.hardware.link_shaping import check_shaping
from samara.devices.hardware.memory_limit import CgroupLimit, MemoryLimit, memory_limit
from samara.devices.hardware.memory_shortage import MemoryShortage
from samara.devices.hardware.own_disk import OwnDisk, check_own_disk, own_disk
from samara.devices.hardware.shifted_clock import ShiftedClock, find_library
from samara.shared.errors import ConfigError, DeviceError
from samara.shared.rehearsal_settings import Fault, FaultKind

CLOCK_SHIFT = -86_400.0
"""Seconds that a clock is ahead after it was set: a day back, before the server's certificate."""
SLOW_DISK = 20_000.0
"""Bytes/s that a slow disk reads, and writes."""
_TRIED_LIMIT = 2**30


class FaultMeans:
    """The means of the faults of one client.

    Args:
        memory: memory limit of its processes.
        clock: its clock; None without a fault of it.
        disk: the disk that its folder is on; None without a fault of it.
        disk_limit: limit of that disk; None without a fault of it.
        dilation: seconds here that stand for a second of the device.
    """

    def __init__(
        self,
        memory: MemoryLimit,
        clock: ShiftedClock | None,
        disk: OwnDisk | None,
        disk_limit: DiskLimit | None,
        dilation: float,
    ) -> None:
        self._memory, self._clock, self._dilation = memory, clock, dilation
        self._disk, self._disk_limit = disk, disk_limit
        self._shortage: MemoryShortage | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the client's processes."""
        return self._clock.environment if self._clock else {}

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs a command so that faults reach it."""
        return self._disk_limit.command(command) if self._disk_limit else list(command)

    def set_clock(self) -> None:
        """Set the clock back."""
        assert self._clock is not None, "its fault was prepared"
        self._clock.shift(CLOCK_SHIFT)

    def correct_clock(self) -> None:
        """Set the clock right."""
        assert self._clock is not None, "its fault was prepared"
        self._clock.shift(0.0)

    def fill_disk(self) -> None:
        """Fill the disk."""
        assert self._disk is not None, "its fault was prepared"
        self._disk.fill()

    def free_disk(self) -> None:
        """Free what has filled the disk."""
        assert self._disk is not None, "its fault was prepared"
        self._disk.free()

    def slow_disk(self) -> None:
        """Slow the disk down."""
        self._set_disk_rate(SLOW_DISK / self._dilation)

    def hasten_disk(self) -> None:
        """Let the disk be as fast as this machine's again."""
        self._set_disk_rate(None)

    def take_memory(self) -> None:
        """Take memory that the client needs."""
        assert isinstance(self._memory, CgroupLimit), "its fault was prepared"
        self._shortage = MemoryShortage(self._memory)

    def give_memory(self) -> None:
        """Give that memory back."""
        if self._shortage is not None:
            self._shortage.end()
            self._shortage = None

    def _set_disk_rate(self, rate: float | None) -> None:
        assert self._disk is not None, "its fault was prepared"
        assert self._disk_limit is not None, "its fault was prepared"
        self._disk_limit.set_rate(self._disk.device, rate)


@contextmanager
def fault_means(
    kinds: set[FaultKind], memory: MemoryLimit, home: Path, dilation: float
) -> Iterator[FaultMeans]:
    """Prepare the faults of a client for the duration of a block.

    Args:
        kinds: kinds of its faults.
        memory: memory limit of its processes.
        home: folder of the client, in which a disk is mounted where a fault needs one.
        dilation: seconds here that stand for a second of the device.

    Raises:
        DeviceError: if this machine does not permit one of them.
    """
    with ExitStack() as undo:
        home.parent.mkdir(parents=True, exist_ok=True)
        clock = disk = limit = None
        if "clock-set" in kinds:
            clock = ShiftedClock(home.with_suffix(".clock"), find_library())
        if kinds & {"disk-full", "slow-disk"}:
            disk = undo.enter_context(own_disk(home))
        if "slow-disk" in kinds:
            limit = limit_disk(memory)
            undo.callback(limit.close)
        means = FaultMeans(memory, clock, disk, limit, dilation)
        undo.callback(means.give_memory)
        yield means


def check_means(faults: Sequence[Fault]) -> None:
    """Check that this machine permits all kinds of faults, before anything starts.

    Raises:
        ConfigError: naming each fault that it does not permit.
    """
    mistakes = []
    for kind, check in _CHECKS.items():
        concerned = [number for number, fault in enumerate(faults) if fault.kind == kind]
        try:
            for _ in concerned[:1]:
                check()
        except (DeviceError, OSError) as error:
            mistakes += [f"rehearsal.faults.{number}: {kind}: {error}" for number in concerned]
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def _check_slow_disk() -> None:
    check_own_disk()
    with memory_limit(_TRIED_LIMIT) as memory:
        limit_disk(memory).close()


def _check_shortage() -> None:
    with memory_limit(_TRIED_LIMIT) as memory:
        if not isinstance(memory, CgroupLimit):
            raise DeviceError("memory is taken from a client in a control group, which takes root")


_CHECKS: dict[FaultKind, Callable[[], object]] = {
    "link-cut": check_shaping,
    "clock-set": find_library,
    "disk-full": check_own_disk,
    "slow-disk": _check_slow_disk,
    "out-of-memory": _check_shortage,
}
