"""A newcomer's first commands: forgotten data, plans, lists, finished runs and stopped runs."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import samara.simulations.simulate
from samara.client.tuning import run as tuning
from samara.shared.errors import ConfigError, DataError, ModelError
from samara.shared.results.result import RunResult, read_result
from samara.shared.settings.config import RunConfig
from samara.simulations.simulate import simulate

Run = Callable[..., tuple[int, str, str]]


def words(text: str) -> str:
    """Return a text without the line breaks of a terminal."""
    return " ".join(text.split())


def nothing_is_loaded(*_: Any, **__: Any) -> Any:
    raise AssertionError("a model or data were loaded")


@pytest.mark.parametrize("command", [("simulate", "sst2"), ("tune", "--task", "sst2")])
def test_a_task_without_its_data_is_refused_before_anything_is_loaded(
    command: tuple[str, ...], run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(samara.simulations.simulate, "RUNS", None)
    monkeypatch.setattr(tuning, "TuningSetup", nothing_is_loaded)
    status, printed, errors = run(*command, "--model", "m", "--out", tmp_path / "out")
    assert (status, printed) == (1, "")
    assert "task 'sst2' has no data: set data.path (--data)" in errors
    assert not (tmp_path / "out").exists()


def test_flower_and_live_clients_refuse_it_too(settings: dict[str, Any]) -> None:
    from samara.client.training.model_runtime import load_run

    forgotten = {key: value for key, value in settings.items() if key != "data.path"}
    with pytest.raises(DataError, match="task 'sst2' has no data"):
        load_run(RunConfig.of(forgotten, "test"))


def test_a_live_client_is_refused_before_it_connects(run: Run, tmp_path: Path) -> None:
    places = ("--superlink", "127.0.0.1:9", "--name", "a", "--insecure", "--home", tmp_path / "a")
    status, printed, errors = run("client", "up", *places, "--task", "sst2", "--model", "m")
    assert (status, printed) == (1, "")
    assert "task 'sst2' has no data: set data.path (--data)" in errors


def test_a_run_says_what_it_is_about_to_do(
    run: Run, settings: dict[str, Any], tmp_path: Path
) -> None:
    scenario = tmp_path / "small.toml"
    scenario.write_text("rounds = 1\n")
    kept = {k: v for k, v in settings.items() if k not in ("out", "model.path", "data.path")}
    given = [part for key, value in kept.items() for part in ("--set", f"{key}={value}")]
    places = ("--model", settings["model.path"], "--data", settings["data.path"])
    status, printed, errors = run(
        "simulate", scenario, *places, *given, "--set", "evaluate.limit=2", "--out", tmp_path / "r"
    )
    assert (status, errors) == (0, "")
    before, _, after = printed.partition("round 1: loss")
    for line in ("data: ", "labels in training: terrible ", "clients: 3 with ", "model: "):
        assert f"\n{line}" in before
    assert "6 validation, 6 test examples" in before
    assert re.search(r"^evaluations: \d+ validations: before round 1,", before, re.MULTILINE)
    assert "before round 1 for 12 rows" in before
    assert "evaluating 6 validation examples of 3 clients" in before
    assert "the best other column (" in words(after)
    assert "majority: always the most frequent label of all clients" in words(after)
    result = RunResult.read(tmp_path / "r")
    tests = [event for event in result.evaluations if event.split == "test"]
    assert {own.examples for own in tests[0].columns["global"].clients.values()} == {2}


def test_the_round_that_measures_the_step_size_says_that_it_trains_nothing(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "samara.server")
    simulate(RunConfig.of(settings | {"learning-rate": "auto", "rounds": 2}, "test"))
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("round ")]
    first, second = (next(li for li in lines if li.startswith(f"round {n}: loss")) for n in (1, 2))
    assert "measures the step size and does not train" in first
    assert "does not train" not in second


def test_a_finished_run_is_found_without_its_model_and_data(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    config = RunConfig.of(settings | {"rounds": 1, "out": ""}, "test")
    folder = simulate(config)
    assert folder.parent.name == "runs"
    assert folder.name == f"sst2-{read_result(folder)['run_id'][:8]}"
    monkeypatch.setattr(samara.simulations.simulate, "RUNS", None)
    assert simulate(config) == folder
    longer = RunConfig.of(settings | {"rounds": 2, "out": str(folder)}, "test")
    with pytest.raises(ConfigError, match=r"differs in rounds \(1 there, 2 here\)"):
        simulate(longer)


def test_finished_tuning_is_found_without_its_model(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tuning import small, tuning_of

    monkeypatch.chdir(tmp_path)
    own = small(Path(settings["model.path"]), Path(settings["data.path"]), Path())
    wanted = tuning_of(own | {"out": "", "steps": 2})
    folder = tuning.tune(wanted)
    assert folder.name.startswith("sst2-")
    monkeypatch.setattr(tuning, "TuningSetup", nothing_is_loaded)
    assert tuning.tune(wanted) == folder
    with pytest.raises(ConfigError, match=r"steps \(2 in the file, 3 here\)"):
        tuning.tune(tuning_of(own | {"out": str(folder), "steps": 3}))


def test_the_base_model_is_validated_once_in_tuning(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tuning import small, tuning_of

    from samara.client.tuning.tuning_setup import TuningSetup

    evaluated: list[int] = []
    result_of = TuningSetup.result_of

    def counted(self: TuningSetup, scores: Any, answers: Any, split: Any) -> Any:
        evaluated.append(len(split.labels))
        return result_of(self, scores, answers, split)

    monkeypatch.setattr(TuningSetup, "result_of", counted)
    own = small(Path(settings["model.path"]), Path(settings["data.path"]), tmp_path / "t")
    folder = tuning.tune(tuning_of(own | {"steps": 2}))
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(evaluated) == len(events) - 1  # zero-shot and step 0 are one evaluation
    assert [event["loss"] for event in events[:3:2]] == [events[0]["loss"]] * 2


@pytest.mark.parametrize("what", ["simulate", "tune"])
def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_loaded(
    what: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tuning import small, tuning_of

    monkeypatch.setattr(samara.simulations.simulate, "RUNS", None)
    monkeypatch.setattr(tuning, "TuningSetup", nothing_is_loaded)
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "run"
    model, data = Path(settings["model.path"]), Path(settings["data.path"])

    def begin() -> Path:
        if what == "tune":
            return tuning.tune(tuning_of(small(model, data, out)))
        return simulate(RunConfig.of(settings | {"out": str(out)}, "test"))

    with pytest.raises(ConfigError, match="results cannot be written there: Not a directory"):
        begin()


def test_a_device_that_torch_lacks_is_refused_before_anything_is_loaded(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samara.simulations.simulate, "RUNS", None)
    with pytest.raises(
        ModelError, match=r"model.torch-device = cuda:77: torch cannot use this device"
    ):
        simulate(RunConfig.of(settings | {"model.torch-device": "cuda:77"}, "test"))


@pytest.mark.parametrize("devices", ["", '[{"device": "laptop", "share": 1}]'])
def test_data_of_one_label_is_refused(
    devices: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "one.jsonl"
    rows = [{"text": f"a good film {number}", "label": 1} for number in range(30)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"one.jsonl: every training row has the label of 'great'"):
        simulate(
            RunConfig.of(settings | {"data.path": str(file), "fleet.devices": devices}, "test")
        )


def test_what_there_is_is_listed(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "begun").mkdir(parents=True)
    (tmp_path / "runs" / "begun" / "layout.json").touch()
    (tmp_path / "runs" / "other").mkdir()
    status, printed, _ = run("simulate", "--list")
    assert status == 0
    assert "popquorn Offensiveness of comments:" in words(printed)
    assert "boolq classification" in words(printed)
    assert "begun not finished; repeat the run's command" in words(printed)
    assert "other " not in printed.partition("Runs in")[2]
    assert "boolq classification" in words(run("simulate", "--list")[1])


def test_a_scenario_that_is_none_is_explained(run: Run, tmp_path: Path) -> None:
    task = tmp_path / "mine.toml"
    task.write_text('name = "mine"\ntext = "{text}"\n')
    for arguments, message in {
        ("ss2",): "ss2: neither a scenario file nor a shipped scenario",
        (task,): "mine.toml: is a task file, not a scenario; give it as --set task=",
    }.items():
        status, printed, errors = run("simulate", *arguments)
        assert (status, printed) == (1, "")
        assert message in errors


def test_a_scenario_that_cannot_be_read_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "label": 0}\n')
    own = tmp_path / "own" / "scenario.toml"
    own.parent.mkdir()
    own.write_text("rounds = 1\n")
    for path, message in {
        tmp_path: "the scenario cannot be read: it is a folder; give a TOML file",
        tmp_path / "binary.toml": "binary.toml: is not UTF-8; save the scenario in UTF-8",
        tmp_path / "rows.jsonl": "rows.jsonl: is data, not a scenario; give it as --data",
        own.parent: f"own: is a folder; give the scenario in it, {own}",
    }.items():
        status, _, errors = run("simulate", path)
        assert status == 1
        assert message in errors


def test_a_path_without_rights_is_one_message(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: Path | None) -> Path:
        raise PermissionError(13, "Permission denied", "closed/field.toml")

    monkeypatch.setattr("samara.shared.settings.scenarios.scenario_file", closed)
    status, printed, errors = run("simulate", "closed/field.toml")
    assert (status, printed) == (1, "")
    assert errors.startswith("samara: closed/field.toml: Permission denied; give a path for")
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("missing", ["token", "tokenizer.json"])
@pytest.mark.parametrize("family", ["causal", "masked", "encoder"])
def test_a_model_without_its_tokenizer_is_named(
    family: str,
    missing: str,
    settings: dict[str, Any],
    model_folder: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    for file in model_folder(family).iterdir():
        if missing not in file.name:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(
        ModelError, match=r"there is no tokenizer; copy the model's tokenizer\.json"
    ):
        simulate(RunConfig.of(settings | {"model.path": str(tmp_path)}, "test"))


def test_version_short_help_and_completion(run: Run) -> None:
    assert run("--version")[1].startswith("samara-fl ")
    assert "--show-completion" in run("-h")[1]
    status, printed, errors = run("simulate", "-h")
    assert "Example: samara" in printed, (status, errors)


def test_a_run_is_named_as_an_argument_or_as_an_option(run: Run, settings: dict[str, Any]) -> None:
    folder = simulate(RunConfig.of(settings | {"rounds": 1}, "test"))
    for command in (("status",), ("status", "--rounds"), ("check", "--replay")):
        by_option, by_argument = (
            run("server", *command, *given) for given in (("--run", folder), (folder,))
        )
        assert by_option == by_argument
        assert by_option[0] == 0
    assert "name the folder of a run" in run("server", "status", "--rounds")[2]


@pytest.mark.parametrize("command", ["simulate", "tune"])
def test_ctrl_c_says_what_continues_the_run(
    command: str,
    run: Run,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def stopped(*_: Any, **__: Any) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(samara.simulations.simulate, "simulate", stopped)
    monkeypatch.setattr(tuning, "tune", stopped)
    places = ("--model", settings["model.path"], "--data", settings["data.path"])
    arguments = ("simulate", "sst2") if command == "simulate" else ("tune", "--task", "sst2")
    status, _, errors = run(*arguments, *places)
    assert (status, errors) == (130, "samara: stopped; the same command continues the run\n")
    assert not os.path.exists("runs/sst2")
    sweep = tmp_path / "sweep.toml"
    sweep.write_text('methods = ["global"]\n' if command == "simulate" else "seed = [1, 2]\n")
    status, _, errors = run(*arguments, *places, "--sweep", sweep, "--out", tmp_path / "out")
    what = "sweep" if command == "simulate" else "run"
    assert (status, errors) == (130, f"samara: stopped; the same command continues the {what}\n")
