"""The wheel, built and installed in an environment of its own, run from foreign folders."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIRST_PARTY = {"samara", "server", "client", "shared", "simulations", "devices"}


def finished(*command: object, folder: Path) -> str:
    """Standard output of a command that must end well, without this checkout on its path."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ended = subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout; the build leaves nothing in it and prints no warning."""
    folder = tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split("\0")
    if not tracked[0]:
        pytest.skip("not a git checkout: which files belong to it is not known")
    source = folder / "source"
    for name in filter(None, tracked):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--verbose"]
    printed = finished(*pip, *build, "--wheel-dir", folder, source, folder=folder)
    assert "deprecat" not in printed.lower()
    assert "Warning: " not in printed.replace("byte-compiling", "")
    (file,) = folder.glob("samara_fl-*.whl")
    return file


@pytest.fixture(scope="module")
def samara(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of the wheel in a fresh environment with other people's packages."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    purelib = Path(
        finished(
            python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder
        ).strip()
    )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    finished(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, folder=folder)
    # A .pth line adds that folder alone: this checkout's editable installation stays out.
    (purelib / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "samara"


def test_the_wheel_holds_the_product_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == FIRST_PARTY | {
        f"{wheel.name.removesuffix('-py3-none-any.whl')}.dist-info",
    }
    assert any(name.endswith("model/embedded/model.safetensors") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shadowed",
    [
        pytest.param(False, id="empty", marks=pytest.mark.exhaustive),
        pytest.param(True, id="with-names-of-ours"),
    ],
)
def test_the_installed_command_runs_anywhere(samara: Path, tmp_path: Path, shadowed: bool) -> None:
    if shadowed:
        (tmp_path / "server.py").write_text(
            "raise SystemExit('a foreign server.py was imported')\n"
        )
        (tmp_path / "shared").mkdir()
        (tmp_path / "shared" / "__init__.py").write_text("raise SystemExit('a foreign shared')\n")
    (tmp_path / "small.toml").write_text("rounds = 1\ndata.clients = 2\npersonal.rounds = 0\n")
    printed = finished(samara, "simulate", "small.toml", "--out", "run", folder=tmp_path)
    assert "after round 1" in printed
    finished(samara, "server", "verify", "run", folder=tmp_path)
