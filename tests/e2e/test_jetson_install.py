"""devices/jetson/install.sh with local indexes: its requests to each index, and its output."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from boards import (
    JETPACK_6,
    JETPACK_7,
    NO_GPU,
    NO_IMPORT,
    NO_KERNEL,
    ROOT,
    SCRIPT,
    WORKS,
    Board,
    Indexes,
    make_wheel,
    offer_torch,
    serve_indexes,
)


@pytest.fixture
def indexes(tmp_path: Path) -> Iterator[Indexes]:
    with serve_indexes(tmp_path / "indexes") as serving:
        yield serving


@pytest.fixture
def board(tmp_path: Path, indexes: Indexes) -> Board:
    if not (Path(sys.executable).parent / "uv").exists():
        pytest.skip("uv is missing")
    return Board(tmp_path, indexes)


@pytest.mark.slow
@pytest.mark.parametrize(("release", "jetpack"), [(JETPACK_6, 6), (JETPACK_7, 7)])
def test_torch_comes_from_the_index_of_the_board_alone(
    board: Board, release: str, jetpack: int
) -> None:
    offer_torch(board, WORKS)
    first = board.install(release=release)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "torch 2.9.1 for CUDA 12.6: a matrix product on sm_87 is right" in first.stdout
    assert f"installed for JetPack {jetpack}" in first.stdout
    assert board.version_of("torch") == "2.9.1"
    assert board.version_of("samara-fl") == "0.1.0"
    assert board.version_of("fsspec") == "1.0"  # which torch needs
    assert board.version_of("samara") == ""
    assert board.indexes.asked("board") == {"torch", "triton"}
    assert board.indexes.fetched()[0].startswith("board/torch/torch-2.9.1")
    assert not [wheel for wheel in board.indexes.fetched() if "torch-2.99" in wheel]
    assert "triton is left out: replay runs on the CPU" in first.stdout

    del board.indexes.log[:]
    again = board.install(release=release)
    assert again.returncode == 0, again.stdout + again.stderr
    assert board.indexes.fetched() == []
    assert board.version_of("torch") == "2.9.1"

    removed = board.install("--uninstall")
    assert removed.returncode == 0, removed.stderr
    assert not board.prefix.exists()


@pytest.mark.slow
def test_the_same_command_goes_on_where_it_was_interrupted(board: Board) -> None:
    offer_torch(board, WORKS)
    ours = board.indexes.folder / "pypi" / "samara-fl"
    ours.rename(board.folder / "away")
    interrupted = board.install()
    assert interrupted.returncode == 1
    assert "Samara cannot be installed; see above" in interrupted.stderr
    assert board.version_of("torch") == "2.9.1"
    (board.folder / "away").rename(ours)
    del board.indexes.log[:]
    ended = board.install()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert board.version_of("samara-fl") == "0.1.0"
    assert board.indexes.asked("board") == {"triton"}
    assert not [wheel for wheel in board.indexes.fetched() if "torch" in wheel]


@pytest.mark.slow
def test_an_update_goes_back_to_the_environment_before(board: Board) -> None:
    offer_torch(board, WORKS)
    newer = make_wheel(board.folder / "n", "samara-fl", "0.2.0", "", ("torch>=2.6", "numpy>=1.26"))
    assert board.install().returncode == 0
    environment, before = board.prefix / "venv", board.prefix / "venv.before"
    subprocess.run(["cp", "-a", environment, before], check=True)
    del board.indexes.log[:]
    updated = board.install("--from", str(newer))
    assert updated.returncode == 0, updated.stdout + updated.stderr
    assert (board.version_of("samara-fl"), board.version_of("torch")) == ("0.2.0", "2.9.1")
    assert not [wheel for wheel in board.indexes.fetched() if "torch" in wheel]
    shutil.rmtree(environment)
    before.rename(environment)
    assert (board.version_of("samara-fl"), board.version_of("torch")) == ("0.1.0", "2.9.1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        pytest.param(
            NO_KERNEL,
            "cannot multiply on this GPU, sm_87; it has sm_80 sm_90: CUDA error: no kernel image",
            id="no-kernel",
        ),
        pytest.param(NO_GPU, "torch 2.9.1 for CUDA 12.6 finds no GPU", id="no-gpu"),
        pytest.param(NO_IMPORT, "torch does not import: libcublas.so.13", id="no-import"),
    ],
)
def test_a_torch_that_does_not_multiply_is_refused_with_its_reason(
    board: Board, code: str, said: str
) -> None:
    offer_torch(board, code)
    ended = board.install()
    assert ended.returncode == 1
    assert said in ended.stderr
    assert "on JetPack 6 the container works: devices/jetson/Containerfile" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_an_index_without_a_wheel_for_this_python_is_said_and_mended_by_another(
    board: Board,
) -> None:
    offer_torch(board, WORKS, "cp36-cp36m-linux_aarch64")
    ended = board.install()
    assert ended.returncode == 1
    assert f"at {board.indexes.address}/board; on JetPack 6 the container works" in ended.stderr
    assert board.indexes.asked("pypi") == set()

    wheel = make_wheel(board.folder / "more", "torch", "2.10.0", WORKS, ("fsspec",))
    board.indexes.offer("elsewhere", "torch", wheel)
    url = f"{board.indexes.address}/elsewhere/torch/{wheel.name}"
    wrong = board.install("--torch-wheel", url, "--sha256", "0" * 64)
    assert wrong.returncode == 1
    assert "does not have the SHA-256" in wrong.stderr
    assert board.version_of("torch") == ""
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()
    ended = board.install("--torch-wheel", url, "--sha256", right)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert board.version_of("torch") == "2.10.0"


def test_a_dry_run_prints_the_commands_and_changes_nothing(board: Board) -> None:
    ended = board.install("--dry-run")
    assert ended.returncode == 0, ended.stderr
    assert f"--default-index {board.indexes.address}/board torch>=2.6" in ended.stdout
    assert "--extra-index-url" not in ended.stdout
    assert not board.prefix.exists()
    assert board.indexes.log == []


@pytest.mark.parametrize(
    ("options", "release", "said"),
    [
        (("--from", "samara"), JETPACK_6, "another project; ours is samara-fl"),
        (("--from", "samara==1.0"), JETPACK_6, "another project; ours is samara-fl"),
        (("--torch-wheel", "https://example.org/torch.whl"), JETPACK_6, "needs --sha256"),
        ((), "# R32 (release), REVISION: 7.1", "L4T R32 is neither JetPack 6"),
        (("--service", "a b"), JETPACK_6, "--service"),
        (("--uninstall",), JETPACK_6, "was not made by this script"),
        (("--colour",), JETPACK_6, "unknown option --colour"),
    ],
)
def test_what_cannot_be_installed_is_said_before_anything_is_changed(
    board: Board, options: tuple[str, ...], release: str, said: str
) -> None:
    ended = board.install(*options, release=release)
    assert ended.returncode == 1
    assert said in ended.stderr
    assert not board.prefix.exists()
    assert board.indexes.log == []


@pytest.mark.skipif(os.geteuid() != 0, reason="a service is installed by root")
def test_a_service_gets_user_groups_folders_options_and_its_unit(board: Board) -> None:
    ended = board.install("--dry-run", "--service", "kitchen-orin")
    assert ended.returncode == 0, ended.stderr
    for command in (
        "useradd --system --user-group --home-dir /var/lib/samara",
        "install -d -o root -g samara -m 0750 /etc/samara",
        "write /etc/systemd/system/samara-client@.service",
        "write /etc/samara/kitchen-orin.env",
        "chmod 0640 /etc/samara/kitchen-orin.env",
        "systemctl enable samara-client@kitchen-orin",
    ):
        assert f"+ {command}" in ended.stdout
    assert not board.prefix.exists()


def test_an_image_for_a_board_is_constrained_to_the_torch_and_numpy_of_its_base() -> None:
    steps = (SCRIPT.parent / "Containerfile").read_text().replace("\\\n", "")
    [code] = re.findall(r"RUN python -c '(.*)' > /opt/constraints.txt", steps)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == [f"{name}=={version(name)}" for name in ("torch", "numpy")]
    before, after = steps.split("ENV PIP_CONSTRAINT=/opt/constraints.txt\n")
    assert "pip install" in after
    assert "pip install" not in before


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is missing")
    unit = tmp_path / "samara-client@.service"
    shipped = (SCRIPT.parent / unit.name).read_text()
    assert "ExecStart=/opt/samara/venv/bin/samara client up" in shipped
    page = (ROOT / "docs" / "guides" / "jetson.md").read_text()
    [power_mode] = re.findall(r"```ini\n\[Service\]\n((?:Exec.*nvpmodel.*\n){2})```", page)
    lines = shipped.replace("[Service]\n", f"[Service]\n{power_mode}")
    for program in ("/opt/samara/venv/bin/samara", "/usr/sbin/nvpmodel"):
        lines = lines.replace(program, "/bin/true")
    unit.write_text(lines)
    ended = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")
    assert lines.count("=+/bin/true") == 2


def test_the_scripts_are_clean_for_shellcheck() -> None:
    shellcheck = shutil.which("shellcheck", path=os.environ["PATH"])
    if shellcheck is None:
        pytest.skip("shellcheck is missing")
    scripts = [SCRIPT, ROOT / "tests" / "arm64.sh", ROOT / ".ci" / "run"]
    ended = subprocess.run([shellcheck, *scripts], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
