"""Mechanisms for a client's faults: a separate disk, a wrong clock, and a memory shortage."""

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
from samara.shared.settings.rehearsal import Fault, FaultKind

CLOCK_SHIFT = -86_400.0
"""Shift of a faulty clock in seconds: a day back, before the server's certificate is valid."""
SLOW_DISK = 20_000.0
"""Rate in bytes/s of a slow disk, for reads and for writes."""
_TRIED_LIMIT = 2**30


class FaultMeans:
    """The mechanisms for one client's faults.

    Args:
        memory: memory limit of the client's processes.
        clock: clock of the client; None without a clock fault.
        disk: disk with the client's folder; None without a disk fault.
        disk_limit: rate limit of the disk; None without a fault of a slow disk.
        dilation: seconds on this machine per second of the device.
    """

    def __init__(
        self,
        memory: MemoryLimit,
        clock: ShiftedClock | None,
        disk: OwnDisk | None,
        disk_limit: DiskLimit | None,
        dilation: float,
    ) -> None:
        self._memory = memory
        self._clock = clock
        self._dilation = dilation
        self._disk = disk
        self._disk_limit = disk_limit
        self._shortage: MemoryShortage | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of the client's processes."""
        return self._clock.environment if self._clock else {}

    def command(self, command: Sequence[str]) -> list[str]:
        """Return a command that runs the given command under the client's faults."""
        return self._disk_limit.command(command) if self._disk_limit else list(command)

    def set_clock(self) -> None:
        """Set the client's clock back."""
        assert self._clock is not None, "its fault was prepared"
        self._clock.shift(CLOCK_SHIFT)

    def correct_clock(self) -> None:
        """Correct the client's clock."""
        assert self._clock is not None, "its fault was prepared"
        self._clock.shift(0.0)

    def fill_disk(self) -> None:
        """Fill the client's disk."""
        assert self._disk is not None, "its fault was prepared"
        self._disk.fill()

    def free_disk(self) -> None:
        """Release the space that `fill_disk` has filled."""
        assert self._disk is not None, "its fault was prepared"
        self._disk.free()

    def slow_disk(self) -> None:
        """Limit the rate of the client's disk."""
        self._set_disk_rate(SLOW_DISK / self._dilation)

    def hasten_disk(self) -> None:
        """Remove the rate limit of the client's disk."""
        self._set_disk_rate(None)

    def take_memory(self) -> None:
        """Take memory that the client needs."""
        assert isinstance(self._memory, CgroupLimit), "its fault was prepared"
        self._shortage = MemoryShortage(self._memory)

    def give_memory(self) -> None:
        """Release the memory that `take_memory` has taken."""
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
    """Prepare the faults of a client for a ``with`` block.

    Args:
        kinds: kinds of the client's faults.
        memory: memory limit of the client's processes.
        home: folder of the client, where a disk is mounted if a fault needs a disk.
        dilation: seconds on this machine per second of the device.

    Raises:
        DeviceError: if this machine does not permit one of the faults.
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
    """Check that this machine permits all kinds of faults, before a process starts.

    Raises:
        ConfigError: if this machine does not permit a fault; the message names all such faults.
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
            raise DeviceError(
                "a memory fault needs a control group, which only root can create; run as root"
            )


_CHECKS: dict[FaultKind, Callable[[], object]] = {
    "link-cut": check_shaping,
    "clock-set": find_library,
    "disk-full": check_own_disk,
    "slow-disk": _check_slow_disk,
    "out-of-memory": _check_shortage,
}
