"""The product's folders are one package, also for ruff, mypy and import-linter."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from coverage import CoverageData
from helpers import ROOT

from samara.shared.old_names import OLD_NAMES

PARTS = sorted(OLD_NAMES)


def finished(folder: Path, program: str, *arguments: str) -> str:
    """The output of a program of this environment."""
    ended = subprocess.run(
        [Path(sys.executable).parent / program, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.stdout + ended.stderr


def other_files(folder: str, names: list[str]) -> list[str]:
    paths = [Path(folder, name) for name in names if name != "__pycache__"]
    kept = {path.name for path in paths if path.is_dir() or path.suffix == ".py"}
    return [name for name in names if name not in kept]


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """A copy of the product's Python files, and of the files that the checks need."""
    for name in ("samara", *PARTS, "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=other_files)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_a_wrong_import_is_found_among_all_modules(product: Path) -> None:
    (product / "shared" / "planted.py").write_text("from samara.client import app\n")
    said = finished(product, "lint-imports", "--no-cache")
    analyzed = re.search(r"Analyzed (\d+) files", said)
    assert analyzed is not None, said
    assert int(analyzed[1]) >= 600
    assert "samara.shared.planted -> samara.client.app" in said
    assert "Imports point one way BROKEN" in said
    assert "What a phone re-implements needs numpy only KEPT" in said


def test_a_wrong_type_is_found_in_each_folder_once(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in ("samara", "examples", "benchmarks", "docs", *PARTS):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "planted.py").write_text('number: int = "text"\n')
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "release.py").write_text("")
    for name in PARTS:
        (tmp_path / "samara" / name).symlink_to(f"../{name}")
    said = finished(tmp_path, "mypy")
    errors = re.findall(r"^(\S+)/planted\.py:1: error: Incompatible", said, re.MULTILINE)
    others = ("samara", "examples", "benchmarks", "docs")
    assert sorted(errors) == sorted([*others, *(f"samara/{name}" for name in PARTS)]), said


def test_each_file_is_formatted_and_linted_once() -> None:
    said = finished(ROOT, "ruff", "check", "--show-files")
    files = [Path(line) for line in said.splitlines()]
    assert len(files) > 1000
    assert len({file.resolve() for file in files}) == len(files)
    assert {file.relative_to(ROOT).parts[0] for file in files} >= {"samara", "tests", *PARTS}


def test_coverage_measures_each_file_once(tmp_path: Path) -> None:
    data = tmp_path / "coverage"
    finished(ROOT, "coverage", "run", "--data-file", str(data), "-m", "samara", "--version")
    measured = CoverageData(str(data))
    measured.read()
    files = [Path(file) for file in measured.measured_files()]
    assert len({file.resolve() for file in files}) == len(files)
    product = {file for name in ("samara", *PARTS) for file in (ROOT / name).rglob("*.py")}
    assert set(files) == {file.resolve() for file in product}
    assert measured.lines(str(ROOT / "shared" / "errors.py"))


def test_no_file_is_loaded_under_two_names() -> None:
    loaded = Counter(
        os.path.realpath(file)
        for name, module in list(sys.modules.items())
        if name.split(".")[0] == "samara" and (file := getattr(module, "__file__", None))
    )
    assert len(loaded) > 10
    assert not [file for file, count in loaded.items() if count > 1]


def test_tests_are_no_part_of_it() -> None:
    """Pytest collects only `tests`, which contains no links to the package."""
    assert not [path for path in (ROOT / "tests").rglob("*") if path.is_symlink()]
    assert not list((ROOT / "samara").glob("*/test_*.py"))


@pytest.mark.parametrize("file", ["install.sh", "samara-client@.service", "Containerfile"])
def test_files_on_boards_have_no_old_module_name(file: str) -> None:
    text = (ROOT / "devices" / "jetson" / file).read_text(encoding="utf-8")
    assert not re.search(rf"(?:-m|import|from) (?:{'|'.join(PARTS)})\b", text)
