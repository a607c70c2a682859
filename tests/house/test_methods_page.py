"""The table of the papers' methods: every row has an accepted command, and its test."""

import re
from importlib.util import find_spec
from pathlib import Path

import click
import methods_column
import pytest
from documented import Command, all_tests, command_lines, mistake, names_in, samara_words
from helpers import ROOT
from typer.testing import CliRunner

from samara.client.tuning import run
from samara.client.tuning.settings import TuneSettings
from samara.command import app

PAGE = ROOT / "docs" / "reference" / "methods.md"
NOT_BUILT = "not built"
ROW = re.compile(r"^\| (?!section )(.*)\|$", re.MULTILINE)
CODE = re.compile(r"`([^`]+)`")
NEEDS_A_GPU = re.compile(r"^@pytest\.mark\.gpu\n(?:@.*\n)*def (\w+)", re.MULTILINE)
MEASURING = re.compile(r"`python -m (benchmarks[\w.]*)")


def rows() -> list[tuple[str, ...]]:
    text = PAGE.read_text(encoding="utf-8")
    return [tuple(cell.strip() for cell in row.split("|")) for row in ROW.findall(text)]


def commands_of(row: tuple[str, ...]) -> list[list[str]]:
    """The words of each command of a row, without `samara`."""
    lines = (line for code in CODE.findall(row[2]) for line in command_lines(code))
    return [words for line in lines if (words := samara_words(line)) is not None]


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]}: {row[1]}")
def test_a_row_has_a_command_and_a_test_or_is_not_built(row: tuple[str, ...]) -> None:
    assert len(row) == 5
    tests = CODE.findall(row[3])
    if row[2].startswith(NOT_BUILT):
        assert tests == []
        assert row[4] == ""
        return
    assert tests
    assert set(tests) <= all_tests()
    commands, measuring = commands_of(row), MEASURING.findall(row[2])
    assert commands or measuring
    assert all(find_spec(module) for module in measuring)
    for words in commands:
        assert mistake(Command(PAGE.name, tuple(words), whole=False)) == ""


def test_the_page_counts_what_is_built() -> None:
    parts = [part.partition("\n") for part in PAGE.read_text("utf-8").split("\n## ")]
    counts = []
    for paper, _, text in parts[1:]:
        commands = [row.split("|")[2].strip() for row in ROW.findall(text)]
        built = sum(not command.startswith(NOT_BUILT) for command in commands)
        rows_of = "rows of" if paper == "MeZO" else "of"
        counts.append(f"{built} of {len(commands)} {rows_of} {paper}")
    assert f"Samara implements {', '.join(counts[:-1])} and {counts[-1]}." in parts[0][2]


def test_no_test_of_a_row_is_one_that_ci_leaves_out() -> None:
    """No row names an exhaustive test, or a test that is skipped without a GPU."""
    left_out: set[str] = set()
    for file in (PAGE.parents[2] / "tests").rglob("test_*.py"):
        text = file.read_text("utf-8")
        if re.search(r"^pytestmark = .*exhaustive", text, re.MULTILINE):
            left_out |= names_in(file)
        left_out |= set(NEEDS_A_GPU.findall(text))
    assert "test_cuda_streams_give_the_bits_of_a_resident_model" in left_out
    for row in rows():
        assert not set(CODE.findall(row[3])) & left_out, row


def test_the_page_says_where_tests_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert methods_column.with_places(PAGE.read_text("utf-8")) == PAGE.read_text("utf-8")
    said = {row[4] for row in rows()}
    assert {"", "stand-in", "CPU with bitsandbytes"} <= said
    assert "CPU" not in said  # the page says once where all other tests ran
    assert not any("GPU," in places for places in said)  # none has run on one
    runs = tmp_path / "runs.toml"
    runs.write_text("test_a_gpu_computes_with_streamed_blocks = 2026-12-31\n")
    monkeypatch.setattr(methods_column, "RUNS", runs)
    names = ["test_a_gpu_computes_with_streamed_blocks", "test_ablations_differ_in_time_only"]
    assert methods_column.places(names) == "CPU; stand-in; GPU, 2026-12-31"
    assert methods_column.places(["test_cuda_streams_give_the_bits_of_a_resident_model"]) == ""


def test_commands_of_tune_are_accepted_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options and settings are not only known; their values are accepted together."""
    accepted: list[TuneSettings] = []

    def take(settings: TuneSettings, *_: object) -> Path:
        accepted.append(settings)
        raise click.Abort

    monkeypatch.setattr(run, "tune", take)
    of_tune = [words for row in rows() for words in commands_of(row) if words[0] == "tune"]
    assert len(of_tune) > 40
    for words in of_tune:
        own = ("--task", "sst2") if "--task" not in words else ()
        whole = [*words, *own, "--model", "MODEL", "--data", "DATA"]
        before = len(accepted)
        result = CliRunner().invoke(app, whole)
        assert len(accepted) == before + 1, f"{' '.join(words)}: {result.output}{result.exception}"
