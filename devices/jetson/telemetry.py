"""The machine's temperature, power and load, read from jetson-stats if installed."""

import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

_RELEASE_FILE = Path("/etc/nv_tegra_release")
_BUSY_PERCENT = 50.0
"""Load of all cores, or of the GPU, above which a machine counts as busy."""
_SAMPLE_SECONDS = 0.2


@dataclass(frozen=True)
class Reading:
    """A reading of the machine's sensors; values that cannot be read are None.

    Attributes:
        temperature: temperature of the hottest sensor, °C.
        on_mains: whether the machine is on mains power.
        load: load of the CPU or the GPU, whichever is higher, in percent.
        watts: power drawn by the board.
        power_mode: nvpmodel's name of the power mode.
    """

    temperature: float | None = None
    on_mains: bool | None = None
    load: float | None = None
    watts: float | None = None
    power_mode: str | None = None


def read() -> Reading:
    """Read the sensors; takes about 0.2 s, with jetson-stats about a second."""
    sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
    celsius = [entry.current for entries in sensors.values() for entry in entries]
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    reading = Reading(
        temperature=max(celsius, default=None),
        on_mains=battery.power_plugged if battery else True,
        load=psutil.cpu_percent(_SAMPLE_SECONDS),
    )
    return _with_jetson_stats(reading)


def pause_reason(
    reading: Reading, max_temperature: float, mains_only: bool, idle_only: bool
) -> str:
    """Return the reason why training should pause now; empty if it should not.

    A limit whose sensor cannot be read is a reason too.

    Args:
        reading: reading of the sensors while no training runs.
        max_temperature: limit in °C; 0 means no limit.
        mains_only: whether battery power is a reason.
        idle_only: whether a busy machine is a reason.
    """
    if max_temperature:
        if reading.temperature is None:
            return "the temperature cannot be read here"
        if reading.temperature > max_temperature:
            return f"{reading.temperature:.0f} °C is over {max_temperature:.0f} °C"
    if mains_only and not reading.on_mains:
        return "not on mains"
    if idle_only and (reading.load is None or reading.load > _BUSY_PERCENT):
        return f"busy with something else ({reading.load or 0:.0f} %)"
    return ""


def is_jetson() -> bool:
    """Return whether this machine is a Jetson board, by the release file of its system."""
    return _RELEASE_FILE.exists()


def power_mode() -> str:
    """Return the power mode from nvpmodel; empty if it cannot be read."""
    program = shutil.which("nvpmodel") or "/usr/sbin/nvpmodel"
    try:
        result = subprocess.run(
            [program, "-q"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return parse_power_mode(result.stdout)


def parse_power_mode(output: str) -> str:
    """Return the mode's name in the output of ``nvpmodel -q``; empty if missing."""
    for line in output.splitlines():
        _, mark, name = line.partition("Power Mode:")
        if mark:
            return name.strip()
    return ""


def _with_jetson_stats(reading: Reading) -> Reading:
    """Return the reading with jetson-stats' values, if its service runs."""
    try:
        from jtop import jtop
    except ImportError:
        return reading
    try:
        with jtop() as board:
            if not board.ok():
                return reading
            celsius = [s["temp"] for s in board.temperature.values() if s.get("online", True)]
            graphics = [g["status"]["load"] for g in board.gpu.values()]
            return replace(
                reading,
                temperature=max(celsius, default=reading.temperature),
                load=max([reading.load or 0.0, *graphics]),
                watts=board.power["tot"]["power"] / 1000,
                power_mode=str(board.nvpmodel) if board.nvpmodel else None,
            )
    except Exception:  # any error of the service's version or state: psutil's values remain
        return reading
