"""The machine's temperature, power, load and network; from jetson-stats if it is installed."""

import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

_RELEASE_FILE = Path("/etc/nv_tegra_release")
_KERNEL = "tegra"
"""Substring of the kernel names of Jetson boards, such as 5.15.148-tegra."""
_POWERCAP = Path("/sys/class/powercap")
_METERED_SECONDS = 30.0
"""Seconds after which the network connection is checked again."""
_IS_METERED = {"u 1": True, "u 2": False, "u 3": True, "u 4": False}
"""Map from NetworkManager's NMMetered, as busctl prints it, to whether a connection is metered.

The values are yes, no, guessed yes and guessed no. Another value means unknown.
"""
_METERED_COMMAND = (
    *("busctl", "get-property", "org.freedesktop.NetworkManager"),
    *("/org/freedesktop/NetworkManager", "org.freedesktop.NetworkManager", "Metered"),
)


@dataclass(frozen=True)
class Reading:
    """A reading of the machine's sensors; values that cannot be read are None.

    Attributes:
        temperature: temperature of the hottest sensor in °C.
        on_mains: whether the machine is on mains power.
        load: load of the CPU by other processes, in percent of all cores; with jetson-stats, the
            GPU's load if that is higher and this process does not use the GPU.
        watts: power draw in watts of the board, or of the processor packages alone.
        power_mode: name of the power mode in nvpmodel.
        battery: charge of the battery in percent.
        metered: whether the network connection is metered.
    """

    temperature: float | None = None
    on_mains: bool | None = None
    load: float | None = None
    watts: float | None = None
    power_mode: str | None = None
    battery: float | None = None
    metered: bool | None = None


@dataclass(frozen=True)
class _Counters:
    """Counters whose increase between two readings gives a load or a power.

    Attributes:
        time: monotonic seconds.
        busy: busy seconds, summed over all cores.
        own: processor seconds of this process.
        joules: energy of the processor packages; None if unreadable.
    """

    time: float
    busy: float
    own: float
    joules: float | None

    @classmethod
    def read(cls) -> "_Counters":
        times = psutil.cpu_times()
        own = psutil.Process().cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        # guest time is included in user time
        guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        busy = sum(times) - idle - guests
        return cls(time.monotonic(), busy, own.user + own.system, _package_joules())

    def load_since(self, before: "_Counters") -> float | None:
        """Return the load by other processes in percent of all cores; None if no time passed."""
        seconds = (self.time - before.time) * (os.cpu_count() or 1)
        others = (self.busy - before.busy) - (self.own - before.own)
        return min(100.0, max(0.0, 100 * others / seconds)) if seconds > 0 else None

    def watts_since(self, before: "_Counters") -> float | None:
        """Return the power of the processor packages in watts; None if unreadable."""
        if self.joules is None or before.joules is None or self.joules < before.joules:
            return None  # the counters wrap around from time to time
        seconds = self.time - before.time
        return (self.joules - before.joules) / seconds if seconds > 0 else None


def _battery() -> Any:
    """Return psutil's reading of the battery; None if the machine has none."""
    try:
        return psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    except FileNotFoundError:  # a kernel without power supplies, or a container without /sys
        return None


class Sensors:
    """Reads the sensors repeatedly; load and power are means since the previous reading.

    Args:
        uses_gpu: whether this process works on the GPU; the GPU's load is then not counted as load
            by other processes.
        reads_network: whether to find out if the network connection is metered.
    """

    def __init__(self, uses_gpu: bool = False, reads_network: bool = False) -> None:
        self._uses_gpu = uses_gpu
        self._reads_network = reads_network
        self._counters = _Counters.read()
        self._network_time = -_METERED_SECONDS
        self._metered: bool | None = None

    def read(self) -> Reading:
        """Read the sensors. With jetson-stats this takes about a second."""
        sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
        celsius = [entry.current for entries in sensors.values() for entry in entries]
        battery = _battery()
        before = self._counters
        self._counters = _Counters.read()
        reading = Reading(
            temperature=max(celsius, default=None),
            on_mains=battery.power_plugged if battery else True,
            load=self._counters.load_since(before),
            watts=self._counters.watts_since(before),
            battery=battery.percent if battery else None,
            metered=self._is_metered(),
        )
        return _with_jetson_stats(reading, self._uses_gpu)

    def _is_metered(self) -> bool | None:
        if self._reads_network and time.monotonic() - self._network_time >= _METERED_SECONDS:
            self._network_time = time.monotonic()
            self._metered = _IS_METERED.get(_output_of(_METERED_COMMAND).strip())
        return self._metered


def is_jetson() -> bool:
    """Return whether this machine is a Jetson board.

    In a container the release file may be missing, but the kernel is the board's.
    """
    return _RELEASE_FILE.exists() or _KERNEL in platform.release()


def _output_of(command: Sequence[str]) -> str:
    """Return the output of a command; empty if it cannot be run."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout


def _package_joules() -> float | None:
    """Return the summed energy counters of all processor packages (RAPL), in joules.

    The result is None if the counters cannot be read. On some systems only root may read them.
    """
    try:
        files = [
            zone / "energy_uj"
            for zone in _POWERCAP.glob("intel-rapl:*")
            if zone.name.count(":") == 1
        ]
        joules = [int(file.read_text()) / 1e6 for file in files]
    except (OSError, ValueError):
        return None
    return sum(joules) if joules else None


def _with_jetson_stats(reading: Reading, uses_gpu: bool) -> Reading:
    """Return the reading with values from jetson-stats, if its service runs."""
    try:
        from jtop import jtop
    except ImportError:
        return reading
    try:
        with jtop() as board:
            if not board.ok():
                return reading
            celsius = [s["temp"] for s in board.temperature.values() if s.get("online", True)]
            graphics = [] if uses_gpu else [g["status"]["load"] for g in board.gpu.values()]
            return replace(
                reading,
                temperature=max(celsius, default=reading.temperature),
                load=max([reading.load or 0.0, *graphics]),
                watts=board.power["tot"]["power"] / 1000,
                power_mode=str(board.nvpmodel) if board.nvpmodel else None,
            )
    except Exception:  # the service may fail in any version or state; psutil's values remain
        return reading
