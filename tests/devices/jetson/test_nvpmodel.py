"""The power mode of a board: set only at the owner's request, and restored, by a fake nvpmodel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from samara.devices.jetson import nvpmodel
from samara.devices.jetson.nvpmodel import (
    BEFORE_FILE,
    check_power_mode,
    in_power_mode,
    read_power_mode,
    read_power_modes,
)
from samara.shared.errors import ConfigError, DeviceError

SET_NO_NEW_RIGHTS = 38
"""Linux's PR_SET_NO_NEW_PRIVS."""
MODES = """
# MAXN is the NONE power model to release all constraints
< POWER_MODEL ID=0 NAME=MAXN >
CPU_ONLINE CORE_0 1
< POWER_MODEL ID=1 NAME=15W >
< POWER_MODEL ID=2 NAME=7W >
< PM_CONFIG DEFAULT=1 >
"""
TOOL = """#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >> calls
case "$1" in
-q) echo "NV Fan Mode:quiet"; echo "NV Power Mode: $(cat mode)" ;;
-m)
    read answer
    test "$answer" = yes && exit 1
    case "$2" in
    0) echo MAXN > mode ;;
    1) echo 15W > mode ;;
    *) echo "NVPM ERROR: Reboot required for changing to this power mode" ;;
    esac ;;
esac
"""


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the tool, its modes, and the current mode of the board."""
    folder = tmp_path / "board"
    folder.mkdir()
    (folder / "nvpmodel.conf").write_text(MODES)
    (folder / "mode").write_text("MAXN\n")
    for name, text in (("nvpmodel", TOOL), ("sudo", '#!/bin/sh\nshift\nexec "$@"\n')):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(nvpmodel, "MODES_FILE", folder / "nvpmodel.conf")
    return folder


def test_a_mode_is_set_for_a_while(board: Path, tmp_path: Path) -> None:
    assert read_power_modes() == {"MAXN": 0, "15W": 1, "7W": 2}
    assert check_power_mode("15W") == "15W"
    with in_power_mode("15W", tmp_path):
        assert read_power_mode() == "15W"
        assert (tmp_path / BEFORE_FILE).read_text() == "MAXN"
    assert read_power_mode() == "MAXN"
    assert not (tmp_path / BEFORE_FILE).exists()
    with pytest.raises(RuntimeError, match="ends"), in_power_mode("15W", tmp_path):
        raise RuntimeError("ends")
    assert read_power_mode() == "MAXN"


def test_without_the_owners_word_nothing_is_set(board: Path, tmp_path: Path) -> None:
    assert check_power_mode("") == ""
    with in_power_mode("", tmp_path):
        assert not (tmp_path / BEFORE_FILE).exists()
    assert not (board / "calls").exists()
    with in_power_mode("MAXN", tmp_path):  # the mode that it is in
        assert not (tmp_path / BEFORE_FILE).exists()
    assert (board / "calls").read_text() == "-q\n"


@pytest.mark.parametrize("name", ["", "15W"])
def test_what_a_killed_client_left_is_restored_at_the_next_start(
    name: str, board: Path, tmp_path: Path
) -> None:
    (tmp_path / BEFORE_FILE).write_text("MAXN")
    (board / "mode").write_text("15W\n")
    with in_power_mode(name, tmp_path):
        assert read_power_mode() == (name or "MAXN")
    assert read_power_mode() == "MAXN"
    assert not (tmp_path / BEFORE_FILE).exists()


def test_a_mode_that_is_not_taken_is_an_error(board: Path, tmp_path: Path) -> None:
    with pytest.raises(
        DeviceError, match="power mode 7W and is in MAXN: NVPM ERROR: Reboot required"
    ):
        in_power_mode("7W", tmp_path).__enter__()
    assert read_power_mode() == "MAXN"
    assert not (tmp_path / BEFORE_FILE).exists()


def test_a_mode_that_cannot_be_restored_stays_noted(
    board: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with in_power_mode("15W", tmp_path):
        (tmp_path / BEFORE_FILE).write_text("7W")
    assert (
        "the previous power mode could not be restored: the board did not switch to" in caplog.text
    )
    assert (tmp_path / BEFORE_FILE).read_text() == "7W"
    (tmp_path / BEFORE_FILE).write_text("50W")
    with in_power_mode("", tmp_path):
        assert "the board has no power mode 50W" in caplog.text


def test_other_modes_and_other_machines_are_refused(board: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"owner\.power-mode=60W: choose one of this board's "
        r"modes: MAXN, 15W, 7W",
    ):
        check_power_mode("60W")
    (board / "mode").unlink()
    (board / "nvpmodel").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(DeviceError, match="does not report the current mode"):
        in_power_mode("15W", tmp_path).__enter__()
    (board / "nvpmodel").unlink()
    assert read_power_mode() == ""
    if not Path("/usr/sbin/nvpmodel").exists():
        with pytest.raises(DeviceError, match="nvpmodel is not installed"):
            check_power_mode("15W")
    (board / "nvpmodel.conf").write_text("nothing")
    with pytest.raises(DeviceError, match="names no power mode"):
        check_power_mode("15W")
    (board / "nvpmodel.conf").unlink()
    with pytest.raises(
        DeviceError, match=r"which Jetson boards have, cannot be read .*; leave the setting out"
    ):
        check_power_mode("15W")


def test_a_service_that_may_gain_no_rights_is_refused_in_words(
    board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that sets the flag of systemd's NoNewPrivileges keeps the flag until it ends."""
    if sys.platform != "linux":
        pytest.skip("processes have this flag on Linux")
    asked = (
        "import ctypes, os; from pathlib import Path; from samara.devices.jetson import nvpmodel\n"
        f"nvpmodel.MODES_FILE = Path({str(nvpmodel.MODES_FILE)!r})\n"
        "os.geteuid = lambda: 1000\n"
        "print(nvpmodel.check_power_mode('15W'))\n"
        f"assert not ctypes.CDLL(None).prctl({SET_NO_NEW_RIGHTS}, 1, 0, 0, 0)\n"
        "print(nvpmodel.check_power_mode('MAXN'), nvpmodel.check_power_mode(''))\n"
        "nvpmodel.check_power_mode('15W')\n"
    )
    command = [sys.executable, "-c", asked]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["15W", "MAXN"]
    assert "this process may not gain privileges (NoNewPrivileges in its" in ended.stderr
    assert "in its systemd unit)" in ended.stderr
    assert "have systemd set the mode (docs/guides/jetson.md, Power mode)" in ended.stderr
    assert read_power_mode() == "MAXN"
