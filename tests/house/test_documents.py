"""Tests, benchmarks and files that the documents name exist."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from documented import all_tests, names_in
from helpers import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
HISTORY = {"CHANGELOG.md", "0015-rooms.md"}
"""Documents that may name removed things."""
TEST = re.compile(r"(?:(tests/[\w/]+\.py)::)?\b(test_\w+)(?!\w*\.py)\b")
FILE = re.compile(r"(?<![\w/.])((?:tests|server|client|shared|devices|simulations)/[\w/]+\.py)\b")
MODULE = re.compile(r"python -m (benchmarks(?:\.\w+)+)")
BENCHMARK = re.compile(r"\b(benchmarks/[\w/]+\.py)(?:`?\s+at\s+([0-9a-f]{8}))?")
CHECKOUT = re.compile(r"git checkout ([0-9a-f]{8})")
"""The line by which a block of commands runs the benchmarks of an earlier commit."""


@cache
def exists(path: str, commit: str = "") -> bool:
    """Return whether a file is in the tree or in an earlier commit; in a shallow clone, True."""
    if not commit:
        return (ROOT / path).is_file()
    git = ["git", "-C", str(ROOT), "cat-file", "-e"]

    def succeeds(name: str) -> bool:
        return subprocess.run([*git, name], capture_output=True, check=False).returncode == 0

    return succeeds(f"{commit}:{path}") or not succeeds(f"{commit}^{{commit}}")


def missing(text: str) -> Iterator[str]:
    """Yield each test, file and benchmark that a text names and that does not exist."""
    for file in FILE.findall(text):
        if not (ROOT / file).is_file():
            yield file
    for file, name in TEST.findall(text):
        known = names_in(ROOT / file) if file and (ROOT / file).is_file() else all_tests()
        if name not in known and not any((ROOT / "tests").rglob(f"{name}.py")):
            yield f"{file}::{name}"
    for file, commit in BENCHMARK.findall(text):
        if not exists(file, commit):
            yield file
    for block in text.split("\n\n"):
        commit = next(iter(CHECKOUT.findall(block)), "")
        for module in MODULE.findall(block):
            path = module.replace(".", "/")
            if not (exists(f"{path}.py", commit) or exists(f"{path}/__main__.py", commit)):
                yield module


@pytest.mark.parametrize(
    "document", [d for d in DOCUMENTS if d.name not in HISTORY], ids=lambda d: d.name
)
def test_what_a_document_names_exists(document: Path) -> None:
    assert sorted(missing(document.read_text(encoding="utf-8"))) == []


def claims(text: str) -> Iterator[str]:
    """Yield the items of a threat model's lists, except items that are marked as uncovered."""
    for section in text.split("\n## ")[1:]:
        _, _, body = section.partition("\n")
        enforced = re.split(r"\n\nNot (?:covered|bounded)", body)[0]
        for block in enforced.strip().split("\n\n"):
            yield from re.findall(r"^- .*(?:\n  .*)*", block, re.MULTILINE)


def test_every_claim_of_the_threat_model_names_its_test() -> None:
    model = (ROOT / "docs/concepts/threat-model.md").read_text(encoding="utf-8")
    found = list(claims(model))
    assert len(found) > 50
    assert [claim for claim in found if "test_" not in claim] == []


def test_a_claim_without_a_test_is_found() -> None:
    enforced = "- It is refused\n  always.\n- So is this: `test_this`."
    model = f"# Model\n\n## One\n\n{enforced}\n\nNot covered:\n\n- All."
    assert ["test_" in claim for claim in claims(model)] == [False, True]


def test_what_does_not_exist_is_found() -> None:
    text = "`tests/house/test_documents.py::test_none`, `test_nowhere`, `server/gone.py`, "
    assert list(missing(text + "python -m benchmarks.faults.gone")) == [
        "server/gone.py",
        "tests/house/test_documents.py::test_none",
        "::test_nowhere",
        "benchmarks.faults.gone",
    ]
    with_commit = (
        "`benchmarks/gone.py` at 7508f23d\n\ngit checkout 7508f23d\npython -m benchmarks.gone"
    )
    if (
        subprocess.run(["git", "-C", ROOT, "cat-file", "-e", "7508f23d"], check=False).returncode
        == 0
    ):
        assert list(missing(with_commit)) == ["benchmarks/gone.py", "benchmarks.gone"]
    sound = "tests/house/test_documents.py::test_what_a_document_names_exists"
    assert list(missing(f"{sound}, python -m benchmarks.scale.mixed_run")) == []


def test_the_readme_is_read_in_minutes_and_needs_no_word_of_samara() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 900
    prose = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL)
    own = r"\b(replay\w*|directions?|private rounds?|readouts?|ledgers?|scenarios?|gateways?)\b"
    assert not re.findall(own, prose, re.IGNORECASE)
