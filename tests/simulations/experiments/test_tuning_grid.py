"""Seeds and sweeps of `samara tune`: the runs, and the table of their means."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from samara.client.tuning.settings import TuneSettings
from samara.command import app
from samara.shared.errors import ConfigError
from samara.shared.machine.process import cores
from samara.simulations.experiments.tuning_grid import (
    grid_table,
    make_trials,
    read_grid,
    run_trials,
)

SWEEP = 'learning-rate = [0.1, 0.2]\n[scaling]\nmodify = ["nothing", "variance"]\n'
GIVEN = {"optimizer": "mezo", "steps": 7}
SMALL = (
    *("tune", "--optimizer", "zero-shot", "--set", "data.validation=6"),
    *("--set", "data.test=8", "--set", "data.train=4"),
)
SMALL = (*SMALL, "--set", "threads=1", "--out")


def result_of(settings: TuneSettings) -> dict[str, Any]:
    """A result whose metric depends on seed and learning rate."""
    rate = settings.rate
    value = rate if settings.scaling.modify == "nothing" else rate / 4
    return {
        "metric": "accuracy",
        "validation": {"accuracy": value},
        "test": {"accuracy": value + settings.seed / 100},
    }


def test_a_grid_has_every_combination_with_every_seed(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(SWEEP)
    trials = make_trials(GIVEN, read_grid(file), [0, 3], "out")
    assert [trial.name for trial in trials] == [
        f"learning-rate={rate} scaling.modify={modify}"
        for rate in (0.1, 0.2)
        for modify in ("nothing", "variance")
    ]
    runs = [settings for trial in trials for settings in trial.runs.values()]
    assert {settings.steps for settings in runs} == {7}
    assert [settings.seed for settings in runs] == [0, 3] * 4
    assert len({settings.out for settings in runs}) == 8
    assert runs[1].out == "out/learning-rate=0.1_scaling.modify=nothing/seed-3"
    results = run_trials(trials, result_of)
    console = Console(width=120, record=True)
    console.print(grid_table(results))
    shown = console.export_text()
    assert "2 seeds" in shown
    (best,) = (line for line in shown.splitlines() if "0.2 scaling.modify=nothing" in line)
    assert best.split()[-8:] == ["20.0", "±", "0.0", "21.5", "±", "2.1", "20.0", "23.0"]


def test_one_trial_has_the_folders_of_its_seeds_alone() -> None:
    (trial,) = make_trials(GIVEN, [{}], [1, 2], "out")
    assert [settings.out for settings in trial.runs.values()] == ["out/seed-1", "out/seed-2"]
    (trial,) = make_trials(GIVEN, [{}], [1], "")
    assert trial.runs[1].out == ""
    long = {"task": "x" * 200}
    (first,) = make_trials(GIVEN, [long], [0], "out")
    assert len(Path(first.runs[0].out).parent.name) < 120


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps = 3", "steps: give a list of values, such as"),
        ("steps = []", "steps: give a list of values, such as"),
        ("steps = [", "not valid TOML"),
    ],
)
def test_a_sweep_that_cannot_be_read_is_named(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_grid(file)
    with pytest.raises(ConfigError, match="the sweep file cannot be read"):
        read_grid(tmp_path / "missing.toml")


def test_mistakes_are_found_before_the_first_run() -> None:
    with pytest.raises(ConfigError, match=r"steps=0.*1 mistake in the settings"):
        make_trials(GIVEN, [{"steps": 1}, {"steps": 0}], [0], "")
    with pytest.raises(ConfigError, match="each seed only once"):
        make_trials(GIVEN, [{}], [1, 1], "")


def named(settings: TuneSettings) -> dict[str, Any]:
    return {"device": settings.model.torch_device, "seed": settings.seed}


def test_devices_take_the_runs_in_turn() -> None:
    grid = [{"steps": 1}, {"steps": 2}]
    trials = make_trials({}, grid, [0, 3, 4], "", ["cuda:0", "cuda:1"])
    runs = [settings for trial in trials for settings in trial.runs.values()]
    assert [run.model.torch_device for run in runs] == ["cuda:0", "cuda:1"] * 3
    found = run_trials(trials, named, 2)
    assert found == run_trials(trials, named)
    shared = make_trials({}, grid, [0], "", ["cpu", "cpu"])
    assert {t.runs[0].threads for t in shared} == {max(1, cores() // 2)}
    given = make_trials({"threads": 3}, grid, [0], "", ["cpu", "cpu"])
    assert {t.runs[0].threads for t in given} == {3}


@pytest.mark.exhaustive
def test_the_command_makes_runs_side_by_side(tmp_path: Path) -> None:
    shown = CliRunner().invoke(
        app, [*SMALL, str(tmp_path), "--seeds", "0,1", "--devices", "cpu,cpu"]
    )
    assert shown.exit_code == 0, shown.output
    assert "2 seeds" in shown.output
    assert all((tmp_path / f"seed-{seed}" / "result.json").is_file() for seed in (0, 1))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--seeds", "0,1", "--set", "model.torch-device=cpu"), "leave out model.torch-device"),
        ((), "add --seeds or --sweep"),
    ],
)
def test_devices_are_for_several_runs(more: tuple[str, ...], message: str, tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, [*SMALL, str(tmp_path), "--devices", "cpu,cpu", *more])
    assert isinstance(refused.exception, ConfigError)
    assert message in str(refused.exception)


def test_the_command_runs_every_seed_and_ends_with_a_table(tmp_path: Path) -> None:
    arguments = (*SMALL, str(tmp_path / "out"))
    shown = CliRunner().invoke(app, [*arguments, "--seeds", "0,1"])
    assert shown.exit_code == 0, shown.output
    assert {path.name for path in (tmp_path / "out").iterdir()} - {"tensorboard"} == {
        "seed-0",
        "seed-1",
    }
    assert "2 seeds" in shown.output
    assert "as given" in shown.output
    written = list((tmp_path / "out" / "tensorboard").rglob("events.out.tfevents.*"))
    assert {file.parent.name for file in written} >= {"seed-0", "seed-1"}
    both = CliRunner().invoke(app, [*arguments, "--seeds", "0,1", "--seed", "2"])
    assert isinstance(both.exception, ConfigError)
    assert "leave out --seed" in str(both.exception)
