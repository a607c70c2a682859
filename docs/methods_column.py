"""The column of the methods page that shows which tests need more than a CPU."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "docs" / "gpu_runs.toml"
"""File with the day of each test's last run on a GPU, by test."""
_ROW = re.compile(r"^\|(?! section )(?!-)(.*)\|$")
_TEST = re.compile(r"`(test_\w+)`")
_NEEDED = re.compile(r"importorskip\(['\"]([\w.]+)")


def with_places(page: str) -> str:
    """Return the page of methods with the last column of its tables generated again."""
    return "\n".join(map(_with_places, page.split("\n")))


def _with_places(line: str) -> str:
    if (row := _ROW.match(line)) is None:
        return line
    cells = [cell.strip() for cell in row[1].split("|")]
    place = places(_TEST.findall(cells[3]))
    cells[4:] = ["" if place == "CPU" else place]
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def places(names: list[str]) -> str:
    """Return the places where some tests run, with the day of their last run on a GPU.

    Args:
        names: names of test functions.
    """
    days = tomllib.loads(RUNS.read_text("utf-8"))
    found = {place: None for name in names for place in _tests().get(name, ())}
    on_a_gpu = sorted(f"GPU, {days[name]}" for name in names if name in days)
    return "; ".join([*sorted(found), *on_a_gpu[-1:]])


@cache
def _tests() -> dict[str, tuple[str, ...]]:
    """Return the place where each test runs on a machine without a GPU, by name of the test."""
    return {
        name: where
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        for name, where in _tests_of(file.read_text("utf-8"))
    }


def _tests_of(source: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    tree = ast.parse(source)
    pretends = any(
        isinstance(node, ast.ImportFrom) and node.module == "accelerator" for node in tree.body
    )
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            continue
        if any(ast.unparse(mark) == "pytest.mark.gpu" for mark in node.decorator_list):
            yield node.name, ()
            continue
        needed = _NEEDED.findall(ast.unparse(node))
        place = "stand-in" if pretends else "CPU"
        yield node.name, (f"{place} with {', '.join(needed)}" if needed else place,)
