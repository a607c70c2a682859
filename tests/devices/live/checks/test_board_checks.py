"""The preflight's checks of a Jetson, on files in the formats found on boards."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from samara.devices.jetson import board_state, nvpmodel, telemetry
from samara.devices.jetson.nvpmodel import fastest_power_mode, parse_power_mode, read_power_modes
from samara.devices.live.checks import board_checks
from samara.devices.live.checks.board_checks import (
    check_board,
    check_clocks,
    check_desktop,
    check_power_mode,
    check_zram,
    explain_crash,
    name_missing_kernels,
)
from samara.shared.check_result import Outcome

ORIN_NANO = {"15W": 0, "25W": 1, "MAXN_SUPER": 2, "7W": 3}
NVPMODEL = """\
< PARAM TYPE=FILE NAME=CPU_ONLINE >
CORE_1 /sys/devices/system/cpu/cpu1/online

# MAXN is the fastest of most boards
< POWER_MODEL ID=0 NAME=15W >
CPU_ONLINE CORE_1 1
GPU MAX_FREQ 612000000

< POWER_MODEL ID=1 NAME=25W >
< POWER_MODEL ID=2 NAME=MAXN_SUPER >
< POWER_MODEL ID=3 NAME=7W >

< PM_CONFIG DEFAULT=1 >
"""
CPU_A57 = (
    "processor\t: 0\nFeatures\t: fp asimd evtstrm aes pmull sha1 sha2 crc32\nCPU part\t: 0xd07\n"
)
CPU_A78 = "processor\t: 0\nFeatures\t: fp asimd evtstrm aes atomics fphp asimdhp cpuid\n"
CPU_X86 = "processor\t: 0\nflags\t\t: fpu vme de pse\n"
DEVICES = {
    "class/devfreq/17000000.gpu/min_freq": "306000000",
    "class/devfreq/17000000.gpu/max_freq": "624750000",
    "class/devfreq/15340000.vic/min_freq": "115200000",
    "class/devfreq/15340000.vic/max_freq": "729600000",
    "devices/system/cpu/cpufreq/policy0/scaling_min_freq": "729600",
    "devices/system/cpu/cpufreq/policy0/scaling_max_freq": "1510400",
    "devices/system/cpu/cpufreq/policy4/scaling_min_freq": "1510400",
    "devices/system/cpu/cpufreq/policy4/scaling_max_freq": "1510400",
    "block/zram0/mm_stat": "251658240 83886080 88080384 0 90000000 123 4 0",
    "block/zram1/mm_stat": "251658240 83886080 60000000 0 61000000 99 0 0",
    "block/nvme0n1/stat": "1 2 3",
}


def system(folder: Path, **changed: str) -> Path:
    """Write the kernel's files of a board."""
    for name, content in (DEVICES | changed).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{content}\n")
    return folder


@pytest.mark.parametrize(
    ("modes", "fastest"),
    [
        (ORIN_NANO, "MAXN_SUPER"),
        ({"MAXN": 0, "MODE_15W": 1, "MODE_30W": 2, "MODE_50W": 3}, "MAXN"),  # AGX Orin
        ({"MAXN": 0, "10W": 1, "15W": 2, "25W": 3, "40W": 4, "MAXN_SUPER": 5}, "MAXN_SUPER"),
        ({"15W": 0, "7W": 1}, "15W"),  # Orin Nano before JetPack 6.2
        ({"MAXN": 0, "5W": 1}, "MAXN"),  # Jetson Nano
        ({"QUIET": 0}, ""),
        ({}, ""),
    ],
)
def test_the_fastest_mode_goes_by_its_name(modes: dict[str, int], fastest: str) -> None:
    assert fastest_power_mode(modes) == fastest


def test_the_power_mode_s_number_is_the_board_s(tmp_path: Path) -> None:
    (tmp_path / "nvpmodel.conf").write_text(NVPMODEL)
    modes = read_power_modes(tmp_path / "nvpmodel.conf")
    assert modes == ORIN_NANO
    assert check_power_mode("MAXN_SUPER", modes).outcome is Outcome.PASS
    slow = check_power_mode("15W", modes)
    assert slow.outcome is Outcome.WARN
    assert "`sudo nvpmodel -m 2` for MAXN_SUPER" in slow.remedy
    for unknown in (check_power_mode("", modes), check_power_mode("15W", {})):
        assert unknown.outcome is Outcome.WARN
        assert "on the board itself" in unknown.remedy
    assert parse_power_mode("NV Fan Mode:quiet\nNV Power Mode: MAXN\n0\n") == "MAXN"
    assert parse_power_mode("no such thing") == ""


def test_clocks_are_held_when_lowest_and_highest_are_the_same(tmp_path: Path) -> None:
    follows = board_state.clocks_are_held(system(tmp_path / "a"))
    assert follows is False
    assert "jetson_clocks" in check_clocks(follows).remedy
    held = system(
        tmp_path / "b",
        **{
            "class/devfreq/17000000.gpu/min_freq": "624750000",
            "devices/system/cpu/cpufreq/policy0/scaling_min_freq": "1510400",
        },
    )
    assert board_state.clocks_are_held(held) is True
    assert check_clocks(True).remedy == ""
    assert board_state.clocks_are_held(tmp_path / "none") is None
    assert check_clocks(None).finding == "unknown"
    (held / "devices/system/cpu/cpufreq/policy0/scaling_min_freq").write_text("?")
    assert board_state.clocks_are_held(held) is True


def test_memory_to_win_is_said_in_megabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = board_state.zram_bytes(system(tmp_path))
    assert taken == 88_080_384 + 60_000_000
    warned = check_zram(taken)
    assert warned.outcome is Outcome.WARN
    assert "148 MB" in warned.remedy
    assert check_zram(board_state.zram_bytes(tmp_path / "none")).outcome is Outcome.PASS

    def process(name: str, rss: int, shared: int) -> SimpleNamespace:
        memory = SimpleNamespace(rss=rss, shared=shared)
        return SimpleNamespace(info={"name": name, "memory_info": memory})

    running = [process("gnome-shell", 500_000_000, 100_000_000), process("python", 10**9, 0)]
    running += [process("Xorg", 150_000_000, 50_000_000)]
    running += [SimpleNamespace(info={"name": "gdm3", "memory_info": None})]
    monkeypatch.setattr(psutil, "process_iter", lambda names: iter(running))
    warned = check_desktop(board_state.desktop_bytes())
    assert warned.outcome is Outcome.WARN
    assert "to free about 500 MB" in warned.remedy
    assert "set-default multi-user.target" in warned.remedy
    assert check_desktop(0).outcome is Outcome.PASS


@pytest.mark.parametrize(("cpu", "lacks"), [(CPU_A57, True), (CPU_A78, False), (CPU_X86, False)])
def test_an_illegal_instruction_is_explained_where_atomics_are_missing(
    cpu: str, lacks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(cpu)
    assert board_state.lacks_atomics(tmp_path / "cpuinfo") is lacks
    monkeypatch.setattr(board_state, "lacks_atomics", lambda: lacks)
    assert ("install torch 2.9.1 for the CPU" in explain_crash(4)) is lacks
    assert "does not fit this machine" in explain_crash(11)


def test_no_description_of_processors_means_nothing(tmp_path: Path) -> None:
    assert not board_state.lacks_atomics(tmp_path / "none")


def test_missing_kernels_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_capability", {"cuda:1": (8, 7)}.__getitem__)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_90"])
    error = RuntimeError("CUDA error: no kernel image is available for execution on the device\nX")
    said = name_missing_kernels(error, "cuda:1")
    assert "lacks kernels for this GPU, sm_87; it has sm_80 sm_90" in said
    assert name_missing_kernels(RuntimeError("out of memory\nmore"), "cuda") == "out of memory"
    assert name_missing_kernels(ValueError(), "cpu") == "ValueError()"


def test_a_board_is_known_by_its_kernel_where_its_release_file_is_not_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "_RELEASE_FILE", tmp_path / "nv_tegra_release")
    monkeypatch.setattr(telemetry.platform, "release", lambda: "6.1.0-18-amd64")
    assert not telemetry.is_jetson()
    assert [check.finding for check in check_board()] == ["not a Jetson"]
    monkeypatch.setattr(telemetry.platform, "release", lambda: "5.15.148-tegra")
    assert telemetry.is_jetson()
    monkeypatch.setattr(nvpmodel, "MODES_FILE", tmp_path / "nvpmodel.conf")
    monkeypatch.setattr(board_checks, "read_power_mode", lambda: "")
    subjects = [check.subject for check in check_board()]
    assert subjects == ["power mode", "clocks", "desktop", "zram"]
    monkeypatch.setattr(telemetry.platform, "release", lambda: "6.1.0-18-amd64")
    (tmp_path / "nv_tegra_release").touch()
    assert telemetry.is_jetson()
