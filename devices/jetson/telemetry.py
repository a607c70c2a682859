"""How the machine is: temperature, power, load; from jetson-stats where it is there."""

import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

_RELEASE_FILE = Path("/etc/nv_tegra_release")
_BUSY_PERCENT = 50.0
"""Of all cores, or of the GPU, from which on a machine has something else to do."""
_SAMPLE_SECONDS = 0.2


@dataclass(frozen=True)
class Reading:
    """How the machine is at a moment; what cannot be read is None.

    Attributes:
        temperature: of the hottest sensor, °C.
        on_mains: whether it is fed from the mains.
        load: of the processors, the CPU's or the GPU's if that is higher, percent.
        watts: taken by the board.
        power_mode: as nvpmodel calls it.
    """

    temperature: float | None = None
    on_mains: bool | None = None
    load: float | None = None
    watts: float | None = None
    power_mode: str | None = None


def read() -> Reading:
    """How the machine is now; takes about 0.2 s, with jetson-stats about a second."""
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
    """Why nothing should be trained at present; empty if it may.

    A limit that is asked for and cannot be watched is a reason too.

    Args:
        reading: of the machine, while it does not train.
        max_temperature: °C; 0 is no limit.
        mains_only: on battery is a reason.
        idle_only: a busy machine is a reason.
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
    """Whether this is a Jetson board, by the release file of its system."""
    return _RELEASE_FILE.exists()


def power_mode() -> str:
    """The power mode as nvpmodel tells it; empty if it cannot."""
    program = shutil.which("nvpmodel") or "/usr/sbin/nvpmodel"
    try:
        told = subprocess.run(
            [program, "-q"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return parse_power_mode(told.stdout)


def parse_power_mode(told: str) -> str:
    """The mode's name in what ``nvpmodel -q`` prints; empty if it is not there."""
    for line in told.splitlines():
        _, mark, name = line.partition("Power Mode:")
        if mark:
            return name.strip()
    return ""


def _with_jetson_stats(reading: Reading) -> Reading:
    """What jetson-stats knows better; its service may be missing or stopped."""
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
    except Exception:  # whatever the service's version or state makes of it, psutil has read too
        return reading
