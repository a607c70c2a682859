"""`make release`: reasons not to release a version, and reproducible archives."""

import hashlib
import importlib.util
import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from helpers import ROOT

CHANGELOG = """# Changelog

## [Unreleased]

- Later.

## [1.2.0] - 2026-11-30

### Added

- This.

## [1.1.0] - 2026-10-30

- Earlier.

## [1.0.0] - 2026-09-30
"""


@pytest.fixture(scope="module")
def releasing() -> ModuleType:
    specification = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose version 1.2.0 can be released."""
    root = tmp_path / "repository"
    (root / ".ci").mkdir(parents=True)
    (root / ".ci" / "release.py").write_bytes((ROOT / ".ci" / "release.py").read_bytes())
    (root / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1.2.0"\n')
    (root / "CHANGELOG.md").write_text(CHANGELOG)
    (root / "CITATION.cff").write_text("title: X\nversion: 1.2.0\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "first")
    return root


def test_a_clean_new_version_with_a_section_can_be_released(
    releasing: ModuleType, repository: Path
) -> None:
    assert releasing.find_obstacles(repository, "1.2.0") == []


def test_all_obstacles_are_named_at_once(releasing: ModuleType, repository: Path) -> None:
    git(repository, "tag", "v3.0.0")
    (repository / "more.py").write_text("")
    (repository / "CHANGELOG.md").write_text(CHANGELOG + "\n")
    obstacles = releasing.find_obstacles(repository, "3.0.0")
    assert obstacles[0] == "uncommitted changes: CHANGELOG.md, more.py"
    assert "v3.0.0 is tagged already" in obstacles[1]
    assert "no section '## [3.0.0]" in obstacles[2]
    assert "CITATION.cff and pyproject.toml" in obstacles[3]


def test_make_release_stops_at_an_obstacle_and_leaves_nothing(repository: Path) -> None:
    (repository / "CITATION.cff").write_text("title: X\nversion: 1.1.0\n")
    ended = subprocess.run(
        [sys.executable, ".ci/release.py"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "no release:\nuncommitted changes: CITATION.cff\nCITATION.cff and" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (repository / "dist").exists()


def test_a_check_that_fails_leaves_no_tag(repository: Path) -> None:
    (repository / "Makefile").write_text("check:\n\t@echo the reason; exit 1\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "a red check")
    ended = subprocess.run(
        [sys.executable, ".ci/release.py"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "the reason\nmake --no-print-directory check: failed" in ended.stderr
    tags = subprocess.run(["git", "-C", repository, "tag"], capture_output=True, check=True).stdout
    assert tags == b""


def test_a_section_ends_where_the_next_begins(releasing: ModuleType) -> None:
    assert releasing.changelog_section(CHANGELOG, "1.2.0") == "### Added\n\n- This."
    assert releasing.changelog_section(CHANGELOG, "1.1.0") == "- Earlier."
    assert releasing.changelog_section(CHANGELOG, "1.0.0") == ""
    assert releasing.changelog_section(CHANGELOG, "1x2.0") == ""
    assert releasing.changelog_section(CHANGELOG, "Unreleased") == ""


def test_an_archive_depends_on_names_contents_and_its_time_alone(
    releasing: ModuleType, tmp_path: Path
) -> None:
    sums = []
    for number, names in enumerate((["b", "a"], ["a", "b"])):
        folder = tmp_path / str(number) / "packed"
        (folder / "inner").mkdir(parents=True)
        for name in names:
            (folder / "inner" / name).write_text(name)
            os.utime(folder / "inner" / name, (number, number))
        (folder / "inner" / "a").chmod(0o600 if number else 0o664)
        releasing.pack(folder, tmp_path / f"{number}.tar.gz", 1_700_000_000)
        sums.append(hashlib.sha256((tmp_path / f"{number}.tar.gz").read_bytes()).hexdigest())
    assert sums[0] == sums[1]


@pytest.mark.filterwarnings("ignore:Python 3.14 will:DeprecationWarning")
def test_an_archive_is_unpacked_by_a_python_without_filters(
    releasing: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11.0, whose `extractall` has no argument `filter`."""
    extract = tarfile.TarFile.extractall

    def unfiltered(tar: tarfile.TarFile, path: Path) -> None:
        extract(tar, path)

    monkeypatch.delattr(tarfile, "data_filter")
    monkeypatch.setattr(tarfile.TarFile, "extractall", unfiltered)
    folder = tmp_path / "packed"
    folder.mkdir()
    (folder / "a").write_text("a")
    releasing.pack(folder, tmp_path / "packed.tar.gz", 1_700_000_000)
    releasing.unpack(tmp_path / "packed.tar.gz", tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / "packed" / "a").read_text() == "a"


def test_the_citation_names_the_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
