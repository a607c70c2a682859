"""The state of a board's clocks and memory, read from the kernel's files."""

import contextlib
from pathlib import Path

import psutil

_SYSTEM = Path("/sys")
_PROCESSORS = Path("/proc/cpuinfo")
_CPUS = "devices/system/cpu/cpufreq/policy*"
_GPUS = "class/devfreq/*"
_GPU_NAMES = ("gpu", "gv11b", "ga10b", "gp10b", "gm20b")
"""Substrings of the names of Jetson GPUs among the devices with variable clocks."""
_DESKTOP = frozenset(
    (
        *("Xorg", "Xwayland", "gnome-shell", "gdm3", "gdm-x-session", "gsd-xsettings", "compiz"),
        *("gnome-software", "evolution-alarm-notify", "update-notifier", "nautilus", "lxpanel"),
        *("lxsession", "pcmanfm", "openbox", "lightdm", "gnome-session-binary", "ibus-daemon"),
    )
)


def clocks_are_held(system: Path = _SYSTEM) -> bool | None:
    """Return whether all clocks are held at their maximum, as `jetson_clocks` does.

    Args:
        system: root of the kernel's device files.

    Returns:
        Whether all clocks are held; None if the kernel shows no CPU clock.
    """
    limits = []
    for policy in system.glob(_CPUS):
        limits.append(_read_limits(policy, "scaling_min_freq", "scaling_max_freq"))
    for device in system.glob(_GPUS):
        if any(part in device.name for part in _GPU_NAMES):
            limits.append(_read_limits(device, "min_freq", "max_freq"))
    known = [pair for pair in limits if pair is not None]
    return all(low == high for low, high in known) if known else None


def zram_bytes(system: Path = _SYSTEM) -> int:
    """Return the bytes that compressed swap in memory (zram) takes; 0 if there is none."""
    taken = 0
    for statistics in system.glob("block/zram*/mm_stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            taken += int(statistics.read_text().split()[2])
    return taken


def desktop_bytes() -> int:
    """Return the bytes of memory that desktop programs use and do not share."""
    taken = 0
    for process in psutil.process_iter(["name", "memory_info"]):
        memory = process.info["memory_info"]
        if process.info["name"] in _DESKTOP and memory is not None:
            taken += max(0, memory.rss - getattr(memory, "shared", 0))
    return taken


def lacks_atomics(processors: Path = _PROCESSORS) -> bool:
    """Return whether this is an ARMv8.0 processor, which lacks atomic instructions.

    Args:
        processors: path of the kernel's description of the processors.
    """
    try:
        lines = processors.read_text().splitlines()
    except OSError:
        return False
    features = [line.partition(":")[2].split() for line in lines if line.startswith("Features")]
    return bool(features) and not all("atomics" in each for each in features)


def _read_limits(folder: Path, lowest: str, highest: str) -> tuple[int, int] | None:
    try:
        return int((folder / lowest).read_text()), int((folder / highest).read_text())
    except (OSError, ValueError):
        return None
