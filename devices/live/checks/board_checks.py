"""Preflight checks of a Jetson board: power mode, clocks, reclaimable memory, torch kernels."""

from samara.devices.jetson import board_state, telemetry
from samara.devices.jetson.nvpmodel import fastest_power_mode, read_power_mode, read_power_modes
from samara.shared.check_result import CheckResult, Outcome
from samara.shared.errors import DeviceError

_WORTH_SAYING = 100 * 2**20
"""Reclaimable bytes above which the preflight warns."""
GUIDE = "docs/guides/jetson.md"
_ILLEGAL_INSTRUCTION = 4
"""Signal number of SIGILL."""


def check_board() -> list[CheckResult]:
    """Check this machine's power mode and, on a Jetson, its clocks and reclaimable memory."""
    if not telemetry.is_jetson():
        return [CheckResult(Outcome.PASS, "power mode", "not a Jetson")]
    try:
        modes = read_power_modes()
    except DeviceError:
        modes = {}
    return [
        check_power_mode(read_power_mode(), modes),
        check_clocks(board_state.clocks_are_held()),
        check_desktop(board_state.desktop_bytes()),
        check_zram(board_state.zram_bytes()),
    ]


def check_power_mode(mode: str, modes: dict[str, int]) -> CheckResult:
    """Check that a Jetson is in its fastest power mode.

    Args:
        mode: name of the current mode; empty if unknown, as in a container.
        modes: ids of the board's modes by name; empty if unknown.
    """
    fastest = fastest_power_mode(modes)
    if not mode or not fastest:
        remedy = "run `sudo nvpmodel -q` and read /etc/nvpmodel.conf on the board itself"
        return CheckResult(Outcome.WARN, "power mode", mode or "unknown", remedy)
    if mode == fastest:
        return CheckResult(Outcome.PASS, "power mode", mode)
    remedy = (
        f"if power supply and cooling allow it, run `sudo nvpmodel -m {modes[fastest]}` for "
        f"{fastest}, the fastest mode"
    )
    return CheckResult(Outcome.WARN, "power mode", mode, remedy)


def check_clocks(held: bool | None) -> CheckResult:
    """Check that the clocks are held at their maximum.

    Args:
        held: whether the clocks are held at their maximum; None if unknown.
    """
    if held is None:
        return CheckResult(Outcome.PASS, "clocks", "unknown")
    if held:
        return CheckResult(Outcome.PASS, "clocks", "the clocks are held at their maximum")
    advice = "run `sudo jetson_clocks` to hold the clocks at their maximum until the next boot"
    return CheckResult(Outcome.PASS, "clocks", "the clocks follow the load", advice)


def check_desktop(taken: int) -> CheckResult:
    """Check the amount of memory that the desktop takes.

    Args:
        taken: bytes that the desktop's programs take.
    """
    if taken < _WORTH_SAYING:
        return CheckResult(Outcome.PASS, "desktop", "none, or little memory")
    remedy = (
        f"to free about {_megabytes(taken)}, stop the desktop with `sudo systemctl isolate "
        f"multi-user.target`, and permanently with `sudo systemctl set-default multi-user.target`"
    )
    return CheckResult(Outcome.WARN, "desktop", f"takes {_megabytes(taken)}", remedy)


def check_zram(taken: int) -> CheckResult:
    """Check the amount of memory that compressed swap takes.

    Args:
        taken: bytes that compressed swap takes.
    """
    if taken < _WORTH_SAYING:
        return CheckResult(Outcome.PASS, "zram", "none, or little memory")
    remedy = (
        f"to free about {_megabytes(taken)}, use a swap file on a disk instead: `sudo systemctl "
        f"disable nvzramconfig` ({GUIDE}, Memory)"
    )
    return CheckResult(Outcome.WARN, "zram", f"takes {_megabytes(taken)}", remedy)


def name_missing_kernels(error: Exception, device: str) -> str:
    """Explain a failed matrix product; on a GPU, name the kernels that this torch has and lacks.

    Args:
        error: exception that the product raised.
        device: name of the torch device.
    """
    line = (str(error).strip() or repr(error)).splitlines()[0]
    if "no kernel image" not in line:
        return line
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    kernels = " ".join(torch.cuda.get_arch_list())
    return (
        f"torch {torch.__version__} lacks kernels for this GPU, sm_{major}{minor}; it has {kernels}"
    )


def explain_crash(signal_number: int) -> str:
    """Return the probable cause of a signal that ended the preflight, and the remedy."""
    if signal_number == _ILLEGAL_INSTRUCTION and board_state.lacks_atomics():
        return (
            "an instruction that this processor lacks: like the original Jetson Nano, this board "
            "has an ARMv8.0 processor, which newer builds of torch do not support; install torch "
            "2.9.1 for the CPU "
            f"({GUIDE}, Jetson Nano)"
        )
    return f"a library that does not fit this machine; install the build for it ({GUIDE})"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"
