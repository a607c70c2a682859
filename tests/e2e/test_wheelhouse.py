"""A wheelhouse: made from local indexes, installed without a network."""

import hashlib
import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from boards import (
    JETPACK_6,
    PYTHON,
    WORKS,
    Board,
    Indexes,
    make_wheel,
    offer_torch,
    serve_indexes,
)
from typer.testing import CliRunner, Result

from samara.command import app
from samara.devices.jetson import wheelhouse
from samara.devices.jetson.resolution import JETPACKS

pytestmark = pytest.mark.slow

ARCHIVE = f"20261003/cpython-{PYTHON}.15+20261003-aarch64-unknown-linux-gnu.tar.gz"


class Usage(NamedTuple):
    """The result of `shutil.disk_usage`."""

    total: int
    used: int
    free: int


@pytest.fixture
def indexes(tmp_path: Path) -> Iterator[Indexes]:
    with serve_indexes(tmp_path / "indexes") as serving:
        yield serving


@pytest.fixture
def board(tmp_path: Path, indexes: Indexes, monkeypatch: pytest.MonkeyPatch) -> Board:
    """A board, and indexes that offer this machine's uv."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        pytest.skip("uv is missing")
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{indexes.address}/pypi")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    wrapper = {"uv": f'#!/bin/sh\nexec "{uv}" "$@"\n'}
    indexes.offer("pypi", "uv", make_wheel(tmp_path / "w", "uv", "0.12.0", "", scripts=wrapper))
    # The Python of the test is the board's own.
    jetpack = JETPACKS[7]._replace(python=PYTHON)
    monkeypatch.setitem(JETPACKS, 7, jetpack)
    made = Board(tmp_path, indexes)
    offer_torch(made, WORKS)
    return made


def make(board: Board, *options: str) -> Result:
    out = str(board.folder / "stick")
    command = ["device", "wheelhouse", "--jetpack", "7", "--out", out, *options]
    if not {"--torch-index", "--torch-wheel"} & set(options):
        command += ["--torch-index", f"{board.indexes.address}/board"]
    if "--python" not in options:
        command += ["--python", PYTHON]
    if "--from" not in options:
        command += ["--from", "samara-fl"]
    return CliRunner().invoke(app, command)


def can_cut_off() -> bool:
    command = ["unshare", "--net", "--map-root-user", "true"]
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(command, capture_output=True, check=False).returncode
    )


def test_a_wheelhouse_installs_where_no_network_is(board: Board) -> None:
    if not can_cut_off():
        pytest.skip("this user may not cut off the network")
    made = make(board)
    assert made.exit_code == 0, made.output
    stick = board.folder / "stick"
    assert f"{stick} is complete" in " ".join(made.output.split())
    wheels = {wheel.name.split("-")[0] for wheel in (stick / "wheels").iterdir()}
    assert wheels == {"torch", "fsspec", "numpy", "samara_fl", "uv"}
    assert "has no triton: replay runs on the CPU" in made.output
    assert "torch-2.99" not in " ".join(board.indexes.log)
    lines = (stick / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    files = {str(file.relative_to(stick)) for file in stick.rglob("*") if file.is_file()}
    assert sums.keys() == files - {"SHA256SUMS"}
    for name, digest in sums.items():
        assert hashlib.sha256((stick / name).read_bytes()).hexdigest() == digest
    facts = tomllib.loads((stick / "wheelhouse.toml").read_text())
    assert (facts["jetpack"], facts["python"], facts["torch"]) == (7, PYTHON, "2.9.1")
    assert set(facts["from"].values()) <= {
        f"{board.indexes.address}/{path.lstrip('/')}" for path in board.indexes.fetched()
    }

    # elsewhere, without the server
    elsewhere = board.folder / "on the board"
    shutil.copytree(stick, elsewhere)
    shutil.rmtree(stick)
    del board.indexes.log[:]
    ended = board.install_without_network(elsewhere / "install.sh")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "torch 2.9.1 for CUDA 12.6: a matrix product on sm_87 is right" in ended.stdout
    assert "installed for JetPack 7" in ended.stdout
    assert board.version_of("torch") == "2.9.1"
    assert board.version_of("samara-fl") == "0.1.0"
    assert board.version_of("samara") == ""
    assert board.indexes.log == []

    again = board.install_without_network(elsewhere / "install.sh")
    assert again.returncode == 0, again.stdout + again.stderr
    other = board.install_without_network(elsewhere / "install.sh", release=JETPACK_6)
    assert other.returncode == 1
    assert "is for JetPack 7, and this board has JetPack 6" in other.stderr
    asks = board.install_without_network(elsewhere / "install.sh", "--torch-index", "http://a")
    assert "need a network" in asks.stderr
    another = board.install_without_network(elsewhere / "install.sh", "--python", "3.9")
    assert f"is for Python {PYTHON}; leave --python out" in another.stderr

    wheel = next((elsewhere / "wheels").glob("numpy*"))
    wheel.write_bytes(wheel.read_bytes()[:-1])
    damaged = board.install_without_network(elsewhere / "install.sh")
    assert damaged.returncode == 1
    assert "is damaged, see above" in damaged.stderr
    (elsewhere / "SHA256SUMS").unlink()
    begun = board.install_without_network(elsewhere / "install.sh")
    assert "is an incomplete wheelhouse" in begun.stderr


def test_what_was_fetched_is_not_fetched_again(board: Board) -> None:
    index = board.indexes.folder / "board" / "torch"
    [torch] = index.glob("*.whl")
    # an answer that breaks off is asked for the rest
    board.indexes.broken[torch.name] = 100
    made = make(board)
    assert made.exit_code == 0, made.output
    assert f"/board/torch/{torch.name} from 100" in board.indexes.log
    stick = board.folder / "stick"
    assert (stick / "wheels" / torch.name).read_bytes() == torch.read_bytes()

    # a process that was killed, and an older wheel that is wanted no more
    whole = stick / "wheels" / torch.name
    whole.with_name(f"{torch.name}.part").write_bytes(torch.read_bytes()[:250])
    whole.unlink()
    (stick / "wheels" / "torch-2.8.0-py3-none-any.whl").touch()
    del board.indexes.log[:]
    assert make(board).exit_code == 0
    assert [line for line in board.indexes.log if ".whl" in line and "a part" not in line] == [
        f"/board/torch/{torch.name} from 250"
    ]
    assert len(list((stick / "wheels").glob("torch*"))) == 1

    # what is there, and is something else, is fetched again
    whole.write_bytes(b"something else")
    assert make(board).exit_code == 0
    assert whole.read_bytes() == torch.read_bytes()


def test_another_python_comes_along_and_a_wheel_by_its_checksum(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(JETPACKS, 7, JETPACKS[7]._replace(python="3.10"))
    archives = {
        "url": f"{board.indexes.address}/{ARCHIVE}",
        "variant": "default",
        "arch": "aarch64",
    }
    archives |= {"os": "linux", "libc": "gnu", "implementation": "cpython"}
    monkeypatch.setattr(
        "samara.devices.jetson.resolution.run_uv",
        partial(listed, wheelhouse.run_uv, [archives | {"libc": "musl"}, archives]),
    )
    (board.indexes.folder / ARCHIVE).parent.mkdir()
    (board.indexes.folder / ARCHIVE).write_bytes(b"an archive")
    wheel = make_wheel(board.folder / "more", "torch", "2.10.0+b", WORKS, ("fsspec",))
    board.indexes.offer("elsewhere", "torch", wheel)
    url = f"{board.indexes.address}/elsewhere/torch/{wheel.name.replace('+', '%2B')}"
    wrong = make(board, "--torch-wheel", url, "--sha256", "0" * 64)
    assert wrong.exit_code == 1
    assert "instead of 0000" in str(wrong.exception)
    assert not list((board.folder / "stick" / "wheels").glob("torch*"))
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()
    made = make(board, "--torch-wheel", url, "--sha256", right)
    assert made.exit_code == 0, made.output
    assert (board.folder / "stick" / "wheels" / wheel.name).read_bytes() == wheel.read_bytes()
    assert (board.folder / "stick" / "python" / ARCHIVE).read_bytes() == b"an archive"


def listed(run: Callable[..., str], archives: list[dict[str, str]], *arguments: str) -> str:
    return json.dumps(archives) if arguments[0] == "python" else run(*arguments)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--jetpack", "5"), "wheelhouses are for JetPack 6 and 7"),
        (("--python", "3.9"), "--python 3.9: give a version such as 3.12, at least 3.11"),
        (("--torch-wheel", "https://a/torch.whl"), "--torch-wheel needs --sha256"),
        (("--torch-wheel", "https://a/", "--sha256", "0" * 64), "give the address of a wheel"),
        (("--sha256", "0" * 64), "which is missing"),
        (("--from", "samara==9.0"), "this is neither a checkout, nor a wheel, nor samara-fl"),
        (("--from", "tests"), "this folder is not a checkout of samara-fl"),
        (("--out", "tests"), "contains files and is not a wheelhouse"),
        (("--out", "README.md"), "is a file; give a folder"),
        (("--torch-index", "http://127.0.0.1:9/none"), "no torch for Python"),
    ],
)
def test_what_cannot_be_made_is_said_and_nothing_is_written(
    board: Board, options: tuple[str, ...], said: str
) -> None:
    ended = make(board, *options)
    assert ended.exit_code == 1
    assert said in str(ended.exception)
    assert not (board.folder / "stick").exists()
    assert not board.indexes.fetched()


def test_a_wheel_for_another_python_and_a_missing_distribution_are_said(board: Board) -> None:
    for wheel in (board.indexes.folder / "board" / "torch").glob("*.whl"):
        wheel.unlink()
    offer_torch(board, WORKS, "cp36-cp36m-linux_aarch64")
    ended = make(board)
    assert f"no torch for Python {PYTHON} on JetPack 7 at {board.indexes.address}/board" in str(
        ended.exception
    )
    assert "cp36" in str(ended.exception)
    offer_torch(board, WORKS)
    shutil.rmtree(board.indexes.folder / "pypi" / "numpy")
    shutil.rmtree(board.folder / "cache")
    ended = make(board)
    assert "the wheels of Samara or its dependencies cannot be found" in str(ended.exception)
    assert "numpy" in str(ended.exception)


def test_a_disk_that_is_too_small_is_said_before_anything_is_fetched(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheelhouse.shutil, "disk_usage", lambda folder: Usage(10**9, 10**9, 10**6))
    ended = make(board)
    assert "MB, and 1 MB are free" in str(ended.exception)
    assert not (board.folder / "stick").exists()
    assert not board.indexes.fetched()
