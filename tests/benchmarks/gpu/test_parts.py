"""The GPU day, rehearsed on a pretended GPU: every part, and the results of an interrupted part."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from helpers import ROOT

from benchmarks.gpu.__main__ import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    LIMIT,
    main,
    measure,
    read_results,
    rehearsed,
    run_part,
    write_page,
)
from benchmarks.gpu.parts import PARTS, Cell, Given, Part, Row, read_verdicts
from samara.shared.storage.events import append_event

PAGE = ROOT / "docs" / "measurements" / "gpu.md"
FIRST = {"digests", "replay", "tests", "steps-1.1b", "zo2-1.3b", "sst2", "offload", "streams"}
"""One part of each kind; the other parts run the same code with other sizes."""


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, id=part.name, marks=() if part.name in FIRST else pytest.mark.exhaustive)
        for part in PARTS
    ],
)
def test_a_part_is_rehearsed_without_an_error(
    part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAMARA_REPLAY_BACKEND", "numba")
    with rehearsed(tmp_path) as given:
        measure(part, given)
    found = read_results(tmp_path)[part.name]
    assert not found.errors
    assert all(found.cells.values()) or part.name == "streams"  # which torch sees on real ones only
    rows = [row for rows in found.cells.values() for row in rows]
    if part.name == "digests":
        assert {row["as the CPU"] for row in rows} == {True}
    if part.name.startswith("zo2"):
        assert len({row["projected gradients"] for row in rows}) == 1
    write_page(tmp_path, True)
    assert f"## {part.name}" in (tmp_path / "gpu.md").read_text()


def test_a_part_that_was_killed_goes_on_with_the_next_cell(tmp_path: Path) -> None:
    def cells(given: Given) -> Iterator[Cell]:
        yield "first", partial(list, [{"process": os.getpid()}])
        yield "second", partial(list, [{"process": os.getpid()}])

    def killed() -> list[Row]:
        os.kill(os.getpid(), signal.SIGKILL)
        return []

    def first_and_killed(given: Given) -> Iterator[Cell]:
        yield next(cells(given))
        yield "second", killed

    process = multiprocessing.get_context("fork").Process(
        target=measure, args=(Part("digests", 1, "", first_and_killed), Given(tmp_path))
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"part": "digests", "ce')  # as a write that was cut short
    measure(Part("digests", 1, "", cells), Given(tmp_path))
    found = read_results(tmp_path)["digests"].cells
    assert found == {"first": [{"process": process.pid}], "second": [{"process": os.getpid()}]}


@pytest.mark.parametrize(
    ("does", "minutes", "most", "state"),
    [
        ("pass", 1, 60, FINISHED),
        ("raise SystemExit(3)", 1, 60, FAILED),
        ("import time; time.sleep(600)", 0.01, 60, LIMIT),
        ("import time; time.sleep(600)", 1, 0.5, INTERRUPTED),
    ],
)
def test_a_process_of_its_own_ends_at_the_limit(
    does: str, minutes: float, most: float, state: str, tmp_path: Path
) -> None:
    part = Part("digests", minutes, "", lambda given: iter(()))
    command = [sys.executable, "-c", does]
    assert run_part(part, command, os.environ | {"ON": "here"}, tmp_path, most) == state
    (end,) = read_results(tmp_path)["digests"].ends
    assert (end["state"], end["on"]) == (state, "here")


def test_a_finished_part_is_skipped_until_it_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(part: Part, *_: object) -> str:
        append_event(
            tmp_path / "results.jsonl", {"part": part.name, "state": FINISHED, "seconds": 1}
        )
        return FINISHED

    monkeypatch.setattr("benchmarks.gpu.__main__.run_part", run)

    def call(*more: str) -> str:
        own = ["gpu", "--rehearse", "--out", str(tmp_path), "--only", "digests", *more]
        monkeypatch.setattr(sys, "argv", own)
        main()
        return capsys.readouterr().out

    assert "digests:" in call()
    assert "digests:" not in call()
    assert "no time is left" in call("--again", "digests", "--minutes", "0.1")
    assert "digests:" in call()


def test_an_absent_library_costs_its_cell_and_is_tried_again(tmp_path: Path) -> None:
    installed: list[str] = []

    def cells(given: Given) -> Iterator[Cell]:
        def needs_a_library() -> list[Row]:
            if not installed:
                raise ModuleNotFoundError("No module named 'bitsandbytes'")
            return [{"b": 2}]

        yield "without", partial(list, [{"a": 1}])
        yield "with", needs_a_library

    part = Part("quantized", 1, "", cells)
    measure(part, Given(tmp_path))
    found = read_results(tmp_path)["quantized"]
    assert found.cells == {"without": [{"a": 1}]}
    assert found.errors == {"with": "ModuleNotFoundError: No module named 'bitsandbytes'"}
    installed.append("bitsandbytes")
    measure(part, Given(tmp_path))
    found = read_results(tmp_path)["quantized"]
    assert (list(found.cells), found.errors) == (["without", "with"], {})


def test_training_without_a_model_says_what_it_needs(tmp_path: Path) -> None:
    (part,) = (part for part in PARTS if part.name == "sst2")
    measure(part, Given(tmp_path))
    errors = read_results(tmp_path)["sst2"].errors
    assert errors == {"all cells": "ConfigError: needs --model FOLDER and --data sst2=DATA"}


def test_verdicts_are_read_beside_the_properties_of_a_test(tmp_path: Path) -> None:
    of_a_test = '<properties><property name="processor seconds" value="1"/></properties>'
    failed = '<failure message="1 is not 2&#10;more"/><system-out>text</system-out>'
    cases = {"good": "", "bad": failed, "other": '<skipped message="needs a GPU"/>'}
    inside = "".join(
        f'<testcase name="{name}">{of_a_test}{more}</testcase>' for name, more in cases.items()
    )
    report = tmp_path / "tests.xml"
    report.write_text(f"<testsuites><testsuite>{inside}</testsuite></testsuites>", "utf-8")
    assert list(read_verdicts(report)) == [
        {"test": "good", "is": "passed", "says": ""},
        {"test": "bad", "is": "failure", "says": "1 is not 2"},
        {"test": "other", "is": "skipped", "says": "needs a GPU"},
    ]


def test_the_page_lists_the_parts_in_their_order() -> None:
    rows = [
        line.split("|") for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")
    ]
    listed = [(row[1].strip(" `"), float(row[2]), row[3].strip()) for row in rows]
    assert listed == [(part.name, part.minutes, part.tells) for part in PARTS]
