"""The wheel, built and installed in an environment of its own, run from foreign folders."""

import os
import runpy
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from helpers import ROOT

PAGE = [f"devices/phone/web/page/{name}" for name in ("index.html", "library/ort.wasm")]
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
    for name in PAGE:  # a release puts the built page there
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(b"")
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
    assert set(PAGE) <= set(names)


def test_the_wheel_holds_every_file_of_the_product(wheel: Path) -> None:
    """Scenarios, tasks, profiles, protocols, the embedded model, page templates, scripts.

    The page's TypeScript is built with npm, in a checkout.
    """
    names = set(zipfile.ZipFile(wheel).namelist())
    listed = ["git", "-C", ROOT, "ls-files", *sorted(FIRST_PARTY), ":!devices/phone/web"]
    tracked = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    assert len(tracked) > 300
    assert set(tracked) <= names


@pytest.mark.slow
def test_the_same_commit_makes_the_same_wheel_and_sdist(wheel: Path, tmp_path: Path) -> None:
    release = runpy.run_path(str(ROOT / ".ci" / "release.py"))
    before = os.umask(0o077)
    try:
        made = []
        for number in range(2):
            out = tmp_path / str(number)
            out.mkdir()
            release["build_distributions"](ROOT, out)
            made.append({file.name: file.read_bytes() for file in out.iterdir()})
            os.umask(0o002)
    finally:
        os.umask(before)
    assert len(made[0]) == 2
    assert made[0] == made[1]


@pytest.mark.exhaustive
def test_the_demo_and_a_comparison_run_from_the_wheel(samara: Path, tmp_path: Path) -> None:
    for seed in "01":
        finished(samara, "demo", "--seed", seed, "--out", f"run{seed}", folder=tmp_path)
    printed = finished(samara, "compare", "run0", "run1", "--html", "page.html", folder=tmp_path)
    assert "8 clients" in printed
    assert "</html>" in (tmp_path / "page.html").read_text()


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
