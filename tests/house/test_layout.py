"""Tests mirror the code: test files have the names of modules, and none imports another."""

import ast
from pathlib import Path

import pytest
from helpers import ROOT

TESTS = ROOT / "tests"
FILES = sorted(TESTS.rglob("test_*.py"))
NO_MIRRORS = {"e2e", "golden", "house"}


def names_a_module(file: Path) -> bool:
    """Return whether a test file's name begins with the name of a module or folder it mirrors."""
    folder, words = ROOT / file.parent.relative_to(TESTS), file.stem.split("_")[1:]
    names = ("_".join(words[:count]) for count in range(1, len(words) + 1))
    return any((folder / f"{name}.py").is_file() or (folder / name).is_dir() for name in names)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(TESTS)))
def test_a_file_is_named_after_a_module_and_imports_no_test(file: Path) -> None:
    assert file.relative_to(TESTS).parts[0] in NO_MIRRORS or names_a_module(file)
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    imported = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    imported += [a.name for node in nodes if isinstance(node, ast.Import) for a in node.names]
    assert not [name for name in imported if name.split(".")[-1].startswith("test_")]


def test_another_name_is_found() -> None:
    assert names_a_module(TESTS / "shared" / "protocol" / "test_replay_laws.py")
    assert not names_a_module(TESTS / "shared" / "protocol" / "test_laws.py")
