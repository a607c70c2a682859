"""The power mode of a Jetson board, read and set by NVIDIA's tool nvpmodel.

Setting the mode needs root; other users run the tool with ``sudo -n``, which never prompts. A mode
is set only at the owner's request. The previous mode is restored afterwards, or at the next start
after a crash. A service that may not gain privileges cannot set a mode: there, systemd sets it
(docs/guides/jetson.md).
"""

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from samara.shared.errors import ConfigError, DeviceError
from samara.shared.storage.files import write_durably

log = logging.getLogger("samara.device")

MODES_FILE = Path("/etc/nvpmodel.conf")
BEFORE_FILE = "power-mode.before"
"""Name of the file in a client's folder with the mode to restore."""
_MODE = re.compile(r"^\s*<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+)\s*>", re.MULTILINE)
_WATTS = re.compile(r"(\d+)W")
_SECONDS = 30.0
_NO_NEW_RIGHTS = "NoNewPrivs:\t1"
"""Line in the kernel's status file of a process that may not gain privileges, even by sudo."""


def read_power_modes(file: Path | None = None) -> dict[str, int]:
    """Return the ids of the board's power modes by name.

    Args:
        file: configuration file of nvpmodel; by default the file of the system.

    Raises:
        DeviceError: if the file is missing or names no mode, for example on a machine other than a
            Jetson.
    """
    file = file or MODES_FILE
    try:
        modes = {name: int(number) for number, name in _MODE.findall(file.read_text())}
    except (OSError, UnicodeDecodeError) as error:
        raise DeviceError(
            f"owner.power-mode: {file}, which Jetson boards have, cannot be read ({error}); leave "
            "the setting out"
        ) from error
    if not modes:
        raise DeviceError(f"owner.power-mode: {file} names no power mode; leave the setting out")
    return modes


def fastest_power_mode(modes: Mapping[str, int]) -> str:
    """Return the name of a board's fastest mode; empty if there is none.

    The id of a mode does not show its speed: 0 is MAXN on many boards, but 15W on an Orin Nano.
    """
    unlimited = sorted((name for name in modes if name.startswith("MAXN")), key=len)
    limited = {name: int(match[1]) for name in modes if (match := _WATTS.search(name))}
    return unlimited[-1] if unlimited else max(limited, key=lambda name: limited[name], default="")


def check_power_mode(name: str) -> str:
    """Return the name of a power mode if this process may set it; an empty name is always valid.

    Raises:
        ConfigError: if the board has no such mode.
        DeviceError: if the board's modes cannot be read, if nvpmodel is not installed, or if this
            process neither is root nor may become root.
    """
    if not name:
        return name
    modes = read_power_modes()
    if name not in modes:
        raise ConfigError(
            f"owner.power-mode={name}: choose one of this board's modes: {', '.join(modes)}"
        )
    if _program() is None:
        raise DeviceError("owner.power-mode: nvpmodel is not installed; leave the setting out")
    if os.geteuid() and _may_not_gain_rights() and name != read_power_mode():
        raise DeviceError(
            "owner.power-mode: setting a mode needs root, and this process may not gain "
            "privileges (NoNewPrivileges in its systemd unit); leave the setting out, and have "
            "systemd set "
            "the mode (docs/guides/jetson.md, Power mode)"
        )
    return name


@contextmanager
def in_power_mode(name: str, folder: Path) -> Iterator[None]:
    """Put the board into a power mode during a ``with`` block.

    If an earlier block was killed before restoring the previous mode, that mode is restored first.

    Args:
        name: name of the mode; empty leaves the board unchanged.
        folder: folder that stores the previous mode during the block.

    Raises:
        DeviceError: if the mode cannot be set; the previous mode is then restored.
    """
    before = folder / BEFORE_FILE
    _restore(before)
    if not name or name == read_power_mode():
        yield
        return
    _keep_mode(before)
    try:
        _set_power_mode(name)
        log.info("power mode set to %s; the previous mode was %s", name, before.read_text())
        yield
    finally:
        _restore(before)


def read_power_mode() -> str:
    """Return the name of the power mode; empty if nvpmodel does not report it."""
    return parse_power_mode(_run("-q"))


def parse_power_mode(output: str) -> str:
    """Return the mode's name from the output of ``nvpmodel -q``; empty if missing."""
    for line in output.splitlines():
        _, mark, name = line.partition("Power Mode:")
        if mark:
            return name.strip()
    return ""


def _keep_mode(file: Path) -> None:
    """Write the current mode to a file.

    Raises:
        DeviceError: if the mode cannot be read, or the file cannot be written.
    """
    if not (mode := read_power_mode()):
        raise DeviceError(
            "owner.power-mode: nvpmodel does not report the current mode; leave the setting out"
        )
    try:
        write_durably(file, mode.encode())
    except OSError as error:
        raise DeviceError(
            f"{file}: the current power mode cannot be stored: {error.strerror}"
        ) from error


def _restore(file: Path) -> None:
    """Set the mode that a file stores, and delete the file.

    If the mode cannot be set, log a warning and keep the file.
    """
    try:
        mode = file.read_text()
        _set_power_mode(mode)
        file.unlink()
        log.info("power mode set back to %s", mode)
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError, DeviceError) as error:
        log.warning(
            "the previous power mode could not be restored: %s; the file %s contains its name",
            error,
            file,
        )


def _set_power_mode(name: str) -> None:
    """Set a mode.

    Raises:
        DeviceError: if the board has no such mode, or does not switch to it.
    """
    modes = read_power_modes()
    number = modes.get(name)
    if number is None:
        raise DeviceError(f"the board has no power mode {name}; choose one of {', '.join(modes)}")
    said = _run("-m", str(number), with_root=True)
    if (mode := read_power_mode()) != name:
        last = said.strip().splitlines()[-1:] or ["nvpmodel printed nothing"]
        raise DeviceError(
            f"the board did not switch to power mode {name} and is in "
            f"{mode or 'an unknown mode'}: {last[0]}; allow `sudo nvpmodel -m {number}` without a "
            "password, and set a mode that needs a reboot by hand"
        )


def _may_not_gain_rights() -> bool:
    try:
        return _NO_NEW_RIGHTS in Path("/proc/self/status").read_text().splitlines()
    except OSError:  # not Linux
        return False


def _program() -> str | None:
    found = shutil.which("nvpmodel") or "/usr/sbin/nvpmodel"
    return found if Path(found).is_file() else None


def _run(*arguments: str, with_root: bool = False) -> str:
    """Return the output of nvpmodel; empty if it cannot be run.

    Prompts of nvpmodel are answered with no.
    """
    if (program := _program()) is None:
        return ""
    sudo = ["sudo", "-n"] if with_root and os.geteuid() else []
    try:
        ended = subprocess.run(
            [*sudo, program, *arguments],
            input="no\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return ended.stdout
