"""The words of the code: docstrings begin with a sentence, and retired words are gone."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from helpers import ROOT

PACKAGES = ("samara", "server", "client", "shared", "simulations", "devices", "benchmarks")
GENERATED = re.compile(r"trainer_pb2")
BAD_OPENERS = re.compile(
    r"(Of|Nothing|There|What|Who|Whose|Whether|How|Where|Which|When|As|By|Its|So|None|It|Is|Are|Does)\b"
)
RETIRED = (
    # names
    *(
        r"grouping[-_]rounds",
        r"GridAround",
        r"RealWorld",
        r"of_round",
        r"OwnSteps",
        r"ClientPoints",
    ),
    *(
        r"alike_for_all_points",
        r"Workbench",
        r"undoing",
        r"field_of",
        r"Carrier",
        r"Bucket",
        r"Door",
    ),
    *(r"Answering", r"Participant", r"_Stand", r"taken_back", r"(?<!cuda\.)device_of"),
    # sentences
    *(
        r"taken back",
        r"takes? back",
        r"that bites?",
        r"bad world",
        r"where it stands",
        r"stands at round",
    ),
)
RETIRED_WORDS = re.compile("|".join(rf"(?<![\w-]){word}(?![\w-])" for word in RETIRED))
HISTORY = {"CHANGELOG.md"}
"""Files that may contain retired words."""


def sources() -> list[Path]:
    folders = [ROOT / package for package in PACKAGES]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    return [file for file in sorted(files) if not GENERATED.search(file.name)]


def docstrings(file: Path) -> Iterator[tuple[int, str]]:
    """Docstrings of modules, classes, functions, and assigned names."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text
        body = node.body if isinstance(node, ast.Module | ast.ClassDef) else []
        for before, after in pairwise(body):
            if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
                value = after.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield after.lineno, value.value


def test_docstrings_begin_with_a_sentence() -> None:
    bad = [
        f"{file.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for file in [*sources(), *sorted((ROOT / "tests").rglob("*.py"))]
        for line, text in docstrings(file)
        if BAD_OPENERS.match(text)
    ]
    assert not bad, "\n".join(bad)


def test_retired_words_are_gone() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "pyproject.toml"]
    scenarios = (ROOT / "simulations").rglob("*.toml")
    found = [
        f"{name}:{number}: {line.strip()}"
        for file in [*sources(), *documents, *scenarios]
        if (name := file.relative_to(ROOT).as_posix()) not in HISTORY
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if RETIRED_WORDS.search(line) and "former=" not in line  # settings name their old keys
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("file", ["CONTRIBUTING.md", "Makefile", "docs/concepts/architecture.md"])
def test_the_tree_names_every_folder(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    for package in PACKAGES:
        assert f"{package}/" in text


def test_no_product_file_is_longer_than_a_sitting() -> None:
    product = [file for file in sources() if "benchmarks" not in file.parts]
    tables = {ROOT / "shared" / "protocol" / "normal_table.py"}
    long = {
        str(file.relative_to(ROOT)): count
        for file in product
        if file not in tables
        and (count := len(file.read_text(encoding="utf-8").splitlines())) > 900
    }
    assert not long
