"""Scenario files: paths relative to their own folder, and runs whose folder was moved."""

from pathlib import Path

from samara.shared.settings.config import load_scenario
from samara.shared.settings.runs import settings_here
from samara.shared.settings.scenarios import read_scenario, scenario_file


def test_a_reader_of_popquorn_gets_fewer_bytes_a_round_than_the_weights_have() -> None:
    """A record with directions of each of 110 readers takes 14 kB; 386 weights have 1,544 bytes."""
    config = load_scenario(scenario_file(Path("popquorn")))
    sources = 1 if config.seed_policy == "shared" else config.data.clients
    assert 4 * sources * config.steps * config.queries < 4 * 386


def test_paths_of_a_scenario_begin_in_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "mine" / "scenario.toml"
    file.parent.mkdir()
    file.write_text(
        'task = "./task.toml"\nout = "runs/x"\n[data]\npath = "../all.csv"\n[model]\npath = "a/b"\n'
    )
    assert read_scenario(file) == {
        "task": str(tmp_path / "mine" / "task.toml"),
        "out": "runs/x",
        "data": {"path": str(tmp_path / "all.csv")},
        "model": {"path": "a/b"},
    }


def test_what_lies_around_a_moved_run_is_found(tmp_path: Path) -> None:
    new = tmp_path / "new" / "mine"
    (new / "run").mkdir(parents=True)
    (new / "task.toml").touch()
    (tmp_path / "here.csv").touch()
    before = {
        "out": "/nowhere/old/mine/run",
        "task": "/nowhere/old/mine/task.toml",
        "data.path": str(tmp_path / "here.csv"),
        "model.path": "/nowhere/old/model",
    }
    found = settings_here(before, new / "run")
    assert found == before | {"task": str(new / "task.toml")}
    assert settings_here(before | {"out": ""}, new / "run") == before | {"out": ""}
