"""The estimated cost of a run, and the progress bar that follows it."""

import io
import logging
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from federations import config_of
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from samara.client.training.client_data import ClientData
from samara.client.training.model_runtime import load_run
from samara.shared.model.scorers import Prompt
from samara.shared.protocol.frames.instructions import Split
from samara.shared.tasks.rows import Example
from samara.simulations.planning import run_size
from samara.simulations.planning.run_cost import RowCost, RunCost, RunSize, run_cost
from samara.simulations.planning.run_progress import PERSONAL, PLAN, RunProgress
from samara.simulations.planning.run_size import measured_row
from samara.simulations.progress.notebook import NotebookProgress
from samara.simulations.progress.progress import logged, watched

SIZE = RunSize(
    clients=4,
    reports=40,
    private_rounds=8,
    fits=4,
    steps=2,
    perturbations=8,
    directions=4,
    batch=16.0,
    labels=2,
    features=64,
    numbers=128,
    examples=400,
    tokens=20.0,
    training=300,
    validation=40,
    test=60,
    validations=11,
    tests=2,
    personal_columns=(1, 6),
    model_numbers=10_000,
)
READOUT, INSIDE = RowCost(1e-3), RowCost(1e-3, 5e-4, 1e-4)


def cost_of(size: RunSize, row: RowCost) -> float:
    return run_cost(size, row).total


COUNTS = [field.name for field in fields(SIZE) if field.name != "personal_columns"]


@given(st.sampled_from(COUNTS), st.integers(1, 1000), st.sampled_from([READOUT, INSIDE]))
def test_more_of_anything_never_costs_less(name: str, more: int, row: RowCost) -> None:
    inside = SIZE if row is READOUT else replace(SIZE, features=0)
    larger = replace(inside, **{name: getattr(inside, name) + more})
    skipped = ["clients"] + ["features"] * (row is INSIDE)
    if name not in skipped:  # among whom the same examples are divided
        assert cost_of(larger, row) >= cost_of(inside, row)
    assert all(part >= 0 for part in run_cost(larger, row))


def test_passes_of_a_readout_do_not_follow_its_rounds_and_those_inside_the_model_do() -> None:
    longer = replace(SIZE, reports=10 * SIZE.reports)
    slow = RowCost(1.0)
    assert cost_of(longer, slow) - cost_of(SIZE, slow) == pytest.approx(
        cost_of(longer, RowCost(0.0)) - cost_of(SIZE, RowCost(0.0))
    )
    inside, longer = (replace(size, features=0) for size in (SIZE, longer))
    row = RowCost(1.0, 0.0, 1.0)
    steps = (longer.reports - inside.reports) * inside.steps * inside.batch * inside.perturbations
    assert cost_of(longer, row) - cost_of(inside, row) == pytest.approx(steps, rel=0.01)


def messages(size: RunSize) -> Iterator[tuple[str, int]]:
    """The messages of a run with a size, in order."""
    clients, rounds = range(size.clients), size.reports // size.clients
    for kind, times in (("query", 1), ("evaluate", 2)):
        yield from ((kind, client) for _ in range(times) for client in clients)
    for number in range(rounds):
        yield from (("train", client) for client in clients)
        if number < size.validations - 1:
            yield from (("evaluate", client) for client in clients)
    yield from (("evaluate", client) for client in clients)
    yield from ((PERSONAL, client) for _ in range(2) for client in clients)


def test_progress_ends_where_nothing_but_the_report_is_left() -> None:
    cost = run_cost(SIZE, READOUT)
    progress = RunProgress(SIZE, cost)
    before = progress.done
    assert before == cost.loading
    for kind, client in messages(SIZE):
        after = progress.answer(kind, client)
        assert before <= after <= progress.total
        before = after
    assert progress.total - before == pytest.approx(cost.report)


def test_progress_begins_after_the_choice_of_the_form() -> None:
    cost = run_cost(SIZE, READOUT)._replace(form=7.0)
    progress = RunProgress(SIZE, cost)
    assert progress.done == cost.loading + 7.0
    assert progress.end_round(10, 10) >= cost.loading + 7.0 + cost.rounds


def test_progress_is_corrected_where_rounds_were_taken_before_or_ended_early() -> None:
    cost = run_cost(SIZE, READOUT)
    progress = RunProgress(SIZE, cost)
    assert progress.end_round(9, 10) >= cost.loading + 0.9 * cost.rounds
    assert progress.answer(PERSONAL, 0) >= progress.total - cost.report - cost.personal


def test_who_does_not_watch_finds_the_time_left_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "samara.simulation")
    cost = run_cost(SIZE, READOUT)
    with logged(config_of({"data.clients": 4})) as on_message:
        on_message("query", 0)  # before the plan
        event = {"event": PLAN, "progress": RunProgress(SIZE, cost)}
        logging.getLogger("samara.simulation").info("planned", extra={"event": event})
        for kind, client in messages(SIZE):
            on_message(kind, client)
    said = [line for line in caplog.messages if " % completed, about " in line]
    shares = [int(line.split()[0]) for line in said]
    assert shares == sorted(set(shares))
    assert shares[-1] == int(10 * (1 - cost.report / cost.total)) * 10
    assert not logging.getLogger("samara.simulation").handlers


def test_the_bar_of_a_python_program_goes_by_the_plan_on_standard_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed, asked = io.StringIO(), []

    class Terminal(Console):
        def __init__(self, stderr: bool = False) -> None:
            asked.append(stderr)
            super().__init__(file=printed, force_terminal=True, width=100)

    monkeypatch.setattr("samara.simulations.progress.progress.Console", Terminal)
    cost = run_cost(SIZE, READOUT)
    with watched(config_of({"data.clients": 4}), brief=True) as on_message:
        event = {"event": PLAN, "progress": RunProgress(SIZE, cost)}
        logging.getLogger("samara.simulation").info("planned", extra={"event": event})
        for kind, client in messages(SIZE):
            on_message(kind, client)
    assert asked == [True]
    assert "personal models: 4 of 4 clients" in printed.getvalue()
    *_, last = re.findall(r"(\d+)%", printed.getvalue())
    assert int(last) == round(100 * (1 - cost.report / cost.total))
    assert "planned" not in printed.getvalue()


@pytest.mark.parametrize("layers", ["readout", "top:1"])
def test_rows_are_timed_and_nothing_is_kept_of_them(layers: str) -> None:
    config = config_of({"data.clients": 2, "adapter.layers": layers, "threads": 1})
    found = []
    for times in (True, False):
        run = load_run(config)
        shares = [run.data.share_of(client, 2) for client in range(2)]
        if times:
            row = measured_row(run.runtime, shares, SIZE, 2)
            assert row.once > 0
            assert (row.again > 0) == (layers == "top:1")
            assert run.runtime.passes == 0
        prompts = shares[0].tokenized(Split.TEST).prompts
        found.append(run.runtime.base_scores(prompts))
    np.testing.assert_array_equal(*found)


def test_a_damping_counts_until_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rows = []
    for layers in ("readout", "readout", "top:1"):
        config = config_of({"data.clients": 2, "adapter.layers": layers, "threads": 1})
        run = load_run(config)
        shares = [run.data.share_of(client, 2) for client in range(2)]
        rows.append(run_size.run_size(config, run.runtime, shares).damping_rows)
        run.runtime.base_scores(shares[0].tokenized(Split.TEST).prompts)
    assert rows[0] > 100
    assert rows[1:] == [0, 0]


@pytest.mark.parametrize(
    ("steps", "learning_rate", "expected"), [(2, "auto", 25), (32, "auto", 18), (2, 0.1, 17)]
)
def test_forward_differences_take_both_signs_where_they_measure_curvature(
    steps: int, learning_rate: str | float, expected: int
) -> None:
    settings = {"differences": "forward", "steps": steps, "learning-rate": learning_rate}
    config = config_of(
        {"data.clients": 2, "adapter.layers": "top:1", "threads": 1, "queries": 16} | settings
    )
    run = load_run(config)
    shares = [run.data.share_of(client, 2) for client in range(2)]
    assert run_size.run_size(config, run.runtime, shares).perturbations == expected


def test_a_look_at_large_data_tokenizes_some_of_them() -> None:
    whole = tuple(Example(f"row {number}", 0, "", "train") for number in range(1000))
    read: list[str] = []

    def tokenize(example: Example) -> Prompt:
        read.append(example.text)
        return Prompt(((len(read),),), ((),))

    data = ClientData(0, whole, tokenize)
    assert len(data.some_prompts(Split.TRAIN, 128)) == len(read) == 125
    assert read[:2] == ["row 0", "row 8"]
    assert len(data.some_prompts(Split.TRAIN, 5000)) == 1000
    assert data.some_prompts(Split.TEST, 10) == []


@pytest.mark.parametrize("layers", ["readout", "top:1"])
def test_a_short_run_has_few_rows_timed(layers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of({"data.clients": 2, "adapter.layers": layers, "threads": 1})
    run = load_run(config)
    shares = [run.data.share_of(client, 2) for client in range(2)]
    counts = []
    for factor in (0, 1, 100):
        rows = dict.fromkeys(("training", "validation", "reports"), factor * SIZE.validation)
        size = replace(SIZE, features=0, test=0, private_rounds=0, fits=0, **rows)
        timed = Mock(return_value=4e-3)
        monkeypatch.setattr(run_size, "_seconds_of", timed)
        measured_row(run.runtime, shares, size, 2)
        counts.append(timed.call_count)
    least, few, most = counts
    assert least == 2  # the first passes alone
    assert least <= few < most


def test_a_notebook_says_how_much_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    shown: list[dict[str, str]] = []

    class Line:
        def update(self, content: dict[str, str], raw: bool) -> None:
            shown.append(content)

    monkeypatch.setattr("IPython.display.display", lambda content, **_: Line())
    progress = NotebookProgress()
    task = progress.add_task("rounds")
    now = 30.0
    progress.update(task, completed=25.0, total=100.0)
    assert shown == [{"text/plain": "rounds (25%, 30 s, about 90 s left)"}]


def test_a_cost_is_the_sum_of_its_parts() -> None:
    assert RunCost(*range(1, 11)).total == 55
