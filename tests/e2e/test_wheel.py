"""Samara, installed or on the path, runs in folders whose files have its modules' names."""

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from foreign import CHECK, write_foreign_names
from helpers import ROOT

from samara.shared.old_names import OLD_NAMES

PAGE = "devices/phone/web/page"
PAGE_FILES = "index.html", "library/ort.wasm"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def finished(*command: object, folder: Path, path: str = "") -> str:
    """Return the output of a command that must succeed without this checkout on its path."""
    environment = {**os.environ, "PYTHONPATH": path}
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


def write_page(folder: Path) -> None:
    """Write empty files in place of the built page."""
    for name in PAGE_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout, which builds may modify."""
    folder = tmp_path_factory.mktemp("source")
    tracked = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split("\0")
    if not tracked[0]:
        pytest.skip("not a git checkout: which files belong to it is not known")
    for name in filter(None, tracked):
        if os.path.lexists(ROOT / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    write_page(folder / PAGE)  # a release puts the built page there
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout; the build prints no warning."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--verbose"]
    printed = finished(*PIP, *build, "--wheel-dir", folder, source, folder=folder)
    assert "deprecat" not in printed.lower()
    assert "Warning: " not in printed.replace("byte-compiling", "")
    (file,) = folder.glob("samara_fl-*.whl")
    return file


def make_environment(folder: Path, *install: object) -> Path:
    """Return the Python of a fresh environment that also finds other people's packages."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    purelib = Path(
        finished(
            python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder
        ).strip()
    )
    # A .pth line adds that folder alone: this checkout's editable installation stays out.
    (purelib / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    if install:
        options = ["--quiet", "--no-compile", "--no-deps", "--no-index", "--no-build-isolation"]
        finished(*PIP, "--python", python, "install", *options, *install, folder=folder)
    return python


@pytest.fixture(scope="module")
def samara(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of the wheel in a separate environment."""
    return make_environment(tmp_path_factory.mktemp("environment"), wheel).with_name("samara")


def test_the_wheel_holds_the_product_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"samara", f"{wheel.name.removesuffix('-py3-none-any.whl')}.dist-info"}
    assert any(name.endswith("model/embedded/model.safetensors") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {f"samara/{PAGE}/{name}" for name in PAGE_FILES} <= set(names)


def test_the_wheel_holds_every_file_of_the_product(wheel: Path) -> None:
    """Scenarios, tasks, profiles, protocols, the embedded model, page templates and scripts.

    The page's TypeScript is built with npm, in a checkout.
    """
    names = set(zipfile.ZipFile(wheel).namelist())
    listed = ["git", "-C", ROOT, "ls-files", *sorted(OLD_NAMES), ":!devices/phone/web"]
    tracked = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    assert len(tracked) > 300
    assert {f"samara/{name}" for name in tracked} <= names


@pytest.mark.slow
def test_the_same_commit_makes_the_same_wheel_and_sdist(wheel: Path, tmp_path: Path) -> None:
    build = runpy.run_path(str(ROOT / ".ci" / "release.py"))["build_distributions"]
    build.__globals__["BUILT_PAGE"] = tmp_path / "page"  # the built page has 40 MB
    write_page(tmp_path / "page")
    before = os.umask(0o077)
    try:
        made = []
        for number in range(2):
            out = tmp_path / str(number)
            out.mkdir()
            build(ROOT, out)
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
@pytest.mark.parametrize("way", ["wheel", "editable", "path"])
def test_it_is_imported_and_run_beside_modules_with_the_names_of_its_parts(
    way: str, source: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Modules of the project with the same names can still be imported, too."""
    if way == "wheel":
        python = request.getfixturevalue("samara").with_name("python")
    else:
        install = ["--editable", source] if way == "editable" else []
        python = make_environment(tmp_path / "environment", *install)
    folder = tmp_path / "project"
    write_foreign_names(folder)
    (folder / "script.py").write_text(CHECK)
    path = str(source) if way == "path" else ""
    place = python.parents[1] if way == "wheel" else source
    found = Path(finished(python, "script.py", folder=folder, path=path).strip())
    assert found.is_relative_to(place)
    commands = [[python, "-m", "samara"]]
    if way != "path":
        commands.append([python.with_name("samara")])
    for command in commands:
        assert "messages" in finished(*command, "simulate", "--list", folder=folder, path=path)


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
        write_foreign_names(tmp_path, "raise SystemExit(f'{__file__} was imported')\n")
    few = "steps = 1\nqueries = 2\nbatch = 4\nevaluate.limit = 4\n"
    few += "rounds = 1\ndata.clients = 2\npersonal.rounds = 0\n"
    (tmp_path / "small.toml").write_text(few)
    printed = finished(samara, "simulate", "small.toml", "--out", "run", folder=tmp_path)
    assert "after round 1" in printed
    finished(samara, "server", "check", "--replay", "run", folder=tmp_path)
