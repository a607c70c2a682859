"""The lists of runs and scenarios, and a project of `samara new` that is moved with its run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from results import result_of, write_result
from rich.console import Console

from samara.simulations.listing import runs_table, scenarios_table

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.slow
def test_a_moved_project_shows_its_run_and_answers(
    run: Run, tmp_path: Path, model_folder: Callable[[str], Path]
) -> None:
    old = tmp_path / "old"
    old.mkdir()
    rows = [
        {"text": f"a {('bad', 'good')[i % 2]} day {i}", "label": ("bad", "good")[i % 2]}
        for i in range(60)
    ]
    (old / "all.json").write_text(json.dumps(rows))
    model = model_folder("encoder")
    given = ("--data", old / "all.json", "--model", model)
    assert run("new", old / "mine", *given)[::2] == (0, "")
    scenario = (old / "mine" / "scenario.toml").read_text()
    assert 'task = "./task.toml"' in scenario
    assert 'path = "../all.json"' in scenario
    assert run("simulate", old / "mine" / "scenario.toml", "--set", "rounds=1")[0] == 0
    new = tmp_path / "new"
    shutil.move(old, new)
    status, printed, errors = run("simulate", new / "mine" / "scenario.toml", "--set", "rounds=1")
    assert (status, errors) == (0, "")
    assert "already holds the result of this run" in printed
    status, printed, errors = run("adapter", "apply", new / "mine" / "run", "a good day")
    assert (status, errors) == (0, "")
    assert "global" in printed


def test_runs_of_projects_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_result(tmp_path / "runs" / "first", result_of())
    write_result(tmp_path / "mine" / "run", result_of())
    (tmp_path / "mine" / "scenario.toml").touch()
    write_result(tmp_path / "foreign" / "run", result_of())
    monkeypatch.chdir(tmp_path)
    console = Console(width=120)
    with console.capture() as captured:
        console.print(runs_table(Path("runs")))
    shown = captured.get()
    assert "runs/first" in shown
    assert "mine/run" in shown
    assert "foreign" not in shown


def test_scenarios_of_peers_stand_under_their_own_heading() -> None:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(scenarios_table())
    own, _, peers = captured.get().partition("For comparison: algorithms of other papers")
    assert "sst2" in own
    assert "decomfl" not in own
    assert "decomfl" in peers
    assert "fedkseed" in peers
