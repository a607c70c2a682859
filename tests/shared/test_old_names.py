"""The former names of Samara's packages, before they were parts of `samara`."""

import importlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import ROOT

from samara.shared import extensions
from samara.shared.errors import ConfigError
from samara.shared.old_names import OLD_NAMES, OldNameFinder, make_way

MESSAGE = "No module named 'shared'; a part of Samara is imported as 'samara.shared'"


def test_they_are_the_folders_beside_the_package() -> None:
    links = {path.name: path.resolve() for path in (ROOT / "samara").iterdir() if path.is_symlink()}
    assert links == {name: ROOT / name for name in OLD_NAMES}


def test_an_old_name_that_nobody_has_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    assert OldNameFinder in sys.meta_path
    kept = [path for path in sys.path if not Path(path, "shared").is_dir()]
    monkeypatch.setattr(sys, "path", kept)
    importlib.invalidate_caches()
    for name in ("shared", "shared.errors"):
        with pytest.raises(ModuleNotFoundError, match=MESSAGE) as raised:
            importlib.import_module(name)
        assert raised.value.name == "shared"
    assert find_spec("sharedness") is None


def test_a_checkout_on_the_path_explains_it_too() -> None:
    for name in OLD_NAMES:
        command = [sys.executable, "-c", f"import {name}"]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ended.stderr.endswith(
            f"No module named {name!r}; a part of Samara is imported as 'samara.{name}'\n"
        )


def test_a_checkout_makes_way_for_folders_of_the_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    monkeypatch.setattr(sys, "path", [str(ROOT), str(tmp_path), str(tmp_path / "away")])
    path = [str(ROOT / "shared")]
    make_way("shared", path)
    assert path == [str(tmp_path / "shared")]


def test_a_package_for_an_earlier_version_is_named_with_the_new_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    about = tmp_path / "plugin-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[samara.objective]\nolder = plugin:loss\n")
    (tmp_path / "plugin.py").write_text("from shared.tasks.objectives import Objective\n")
    kept = [path for path in sys.path if not Path(path, "shared").is_dir()]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *kept])
    extensions._installed.cache_clear()
    try:
        with pytest.raises(ConfigError, match=f"plugin:loss cannot be loaded.*{MESSAGE}"):
            extensions.stored_name("objective", "older")
    finally:
        extensions._installed.cache_clear()
