"""The command line: its output; every mistake gives one clear message."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import Run

from samara.shared.results.result import read_result
from samara.shared.settings.config import RunConfig


def assignments(settings: dict[str, Any]) -> list[str]:
    pairs = [f"{key}={value}" for key, value in settings.items() if key != "out"]
    return [part for pair in pairs for part in ("--set", pair)]


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text("rounds = 2\n")
    return file


def test_the_demo_tells_accuracies_ceilings_and_where_the_result_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"rounds": 1, "personal.rounds": 1, "data.clients": 2, "threads": 1}
    of = RunConfig.of
    shortened = staticmethod(lambda settings, source: of({**settings, **short}, source))
    monkeypatch.setattr(RunConfig, "of", shortened)
    status, printed, errors = run("demo", "--seed", 3, "--out", tmp_path / "demo")
    assert (status, errors) == (0, "")
    for column in ("majority", "rate", "zero-shot", "bias", "local-only", "global", "personal"):
        assert column in printed
    assert "highest possible accuracy: " in printed
    assert "bytes up" in printed
    assert "all digests agree" in printed
    assert "personal models: 2 of 2 clients\n" in printed
    result = read_result(tmp_path / "demo")
    assert (result["config"]["seed"], result["config"]["data.seed"]) == (3, 3)


@pytest.mark.parametrize("layers", ["top:2", "readout"])
def test_simulate_show_the_rounds_and_prove_them(
    layers: str, run: Run, scenario: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "runs" / "first"
    settings["adapter.layers"] = layers
    status, printed, errors = run("simulate", scenario, *assignments(settings), "--out", out)
    assert (status, errors) == (0, "")
    assert "round 3: loss" in printed
    assert "all digests agree" in printed
    assert str(out / "result.json").replace("\n", "") in printed.replace("\n", "")
    final = read_result(out)["final_digest"]
    status, printed, _ = run("server", "status", "--rounds", out)
    assert status == 0
    assert final[:12] in printed
    assert "0000000001.seg" in printed
    status, printed, _ = run("server", "check", "--replay", out)
    assert status == 0
    assert final in printed.replace("\n", "")


def test_seeds_are_repeated_and_end_with_intervals(
    run: Run, scenario: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    small = settings | {"rounds": 1, "evaluate.limit": 6}
    command = ["simulate", scenario, *assignments(small), "--out", tmp_path / "runs"]
    status, printed, errors = run(*command, "--seeds", "0,3")
    assert (status, errors) == (0, "")
    assert "95 % interval" in printed
    assert "seed 3" in printed
    found = [
        read_result(tmp_path / "runs" / name)["config"]["seed"] for name in ("seed-0", "seed-3")
    ]
    assert found == [0, 3]
    status, _, errors = run(*command, "--seeds", "0,3", "--cohorts-from", tmp_path / "runs")
    assert (status, errors.count("leave out --seeds or --cohorts-from")) == (1, 1)
    status, _, errors = run(*command, "--seeds", "0,3", "--sweep", scenario)
    assert (status, errors.count("leave out --seeds or --sweep")) == (1, 1)


def test_compare_averages_seeds_and_writes_every_client(
    run: Run, scenario: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    folders = [tmp_path / "runs" / name for name in ("a", "b")]
    for seed, out in enumerate(folders):
        settings |= {"seed": seed, "rounds": 1}
        assert run("simulate", scenario, *assignments(settings), "--out", out)[0] == 0
    file = tmp_path / "clients.csv"
    status, printed, errors = run("compare", *folders, "--csv", file)
    assert (status, errors) == (0, "")
    assert "seed 0, 1" in printed.replace("\n", "")
    ends = [read_result(out)["evaluations"][-1]["columns"]["global"] for out in folders]
    mean = sum(end["mean_client_accuracy"] for end in ends) / 2
    line = next(line for line in printed.splitlines() if re.match(r"global +\d", line))
    assert f"{mean * 100:.1f}" in line
    rows = file.read_text().splitlines()
    assert len(rows) == 1 + 3 * 3  # three clients under majority, zero-shot, global
    assert f"written: {file}" in printed.replace("\n", "")


def test_compare_refuses_the_same_counts_of_other_examples(
    run: Run, scenario: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Another data.seed gives every client as many examples, but different ones."""
    folders = [tmp_path / name for name in ("a", "b")]
    for seed, out in enumerate(folders):
        settings |= {"data.seed": seed, "rounds": 1}
        assert run("simulate", scenario, *assignments(settings), "--out", out)[0] == 0
    status, printed, errors = run("compare", *folders, "--csv", tmp_path / "clients.csv")
    assert (status, printed) == (1, "")
    assert " differ (test, train, validation); data.seed is 1, not 0" in errors
    assert not (tmp_path / "clients.csv").exists()


def test_a_flipped_bit_makes_the_proof_name_the_round(
    run: Run, scenario: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    run("simulate", scenario, *assignments(settings), "--out", out)
    ledger = out / "ledger" / "0000000001.seg"
    data = bytearray(ledger.read_bytes())
    data[-200] ^= 4
    ledger.write_bytes(data)
    status, printed, errors = run("server", "check", "--replay", out)
    assert (status, errors) == (1, "")
    assert re.search(r"^fail +replay +.*round 3", printed, re.MULTILINE)


def test_five_mistakes_are_reported_at_once(run: Run, scenario: Path, tmp_path: Path) -> None:
    mistakes = ["rounds=0", "adapter.rnak=2", "epsilon=nan", "seed-policy=both", "data.clients=x"]
    arguments = [part for mistake in mistakes for part in ("--set", mistake)]
    out = tmp_path / "out"
    status, printed, errors = run("simulate", scenario, *arguments, "--out", out)
    assert (status, printed) == (1, "")
    assert "5 mistakes" in errors
    for key in ("rounds", "adapter.rnak", "epsilon", "seed-policy", "data.clients"):
        assert f"  {key}: " in errors
    assert "did you mean adapter.rank?" in errors
    assert not out.exists()


@pytest.mark.parametrize("words", [("simulat",), ("server", "statsu"), ("client", "statuss")])
def test_a_misspelt_command_is_answered_by_one_suggestion(run: Run, words: tuple[str, ...]) -> None:
    status, printed, errors = run(*words)
    assert (status, printed) == (2, "")
    assert errors.count("Did you mean") == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.path": "/nowhere/model"}, "/nowhere/model: there is no such model folder"),
        ({"model.path": ""}, "model.path is empty"),
        ({"data.path": "/nowhere/rows.jsonl"}, "/nowhere/rows.jsonl"),
        ({"task": "no-such-task"}, "neither a shipped task nor a file"),
        ({"adapter.projections": "nothing"}, "no linear layer called nothing"),
        ({"data.clients": 500}, "no training example"),
    ],
)
def test_a_mistake_is_one_message_and_leaves_nothing(
    changes: dict[str, Any],
    message: str,
    run: Run,
    scenario: Path,
    settings: dict[str, Any],
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    status, _, errors = run("simulate", scenario, *assignments(settings | changes), "--out", out)
    assert status == 1
    assert message in errors
    assert "Traceback" not in errors
    assert not out.exists()


def test_bad_rows_are_named_by_file_and_line(
    run: Run, scenario: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"text": "good", "label": 1}, {"text": "good", "label": 7}, {"label": 1}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{\n")
    changed = assignments(settings | {"data.path": str(file)})
    status, _, errors = run("simulate", scenario, *changed, "--out", tmp_path / "out")
    assert status == 1
    for line in (2, 3, 4):
        assert f"rows.jsonl:{line}" in errors


@pytest.mark.parametrize(
    "arguments",
    [
        ("simulate", "no-such-scenario.toml"),
        ("server", "status", "--rounds", "no-such-run"),
        ("server", "check", "--replay", "no-such-run"),
    ],
)
def test_what_is_not_there_is_named(arguments: tuple[str, ...], run: Run) -> None:
    status, printed, errors = run(*arguments)
    assert (status, printed) == (1, "")
    assert arguments[-1] in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("command", ["server keys operator", "server sign --make-key"])
def test_no_option_takes_a_request_for_help_as_its_value(
    command: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for word in ("--help", "-h"):
        status, printed, _ = run(*command.split(), word)
        assert status == 0
        assert "server sign [OPTIONS]" in printed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("simulate", "--help"),
        ("tune", "--help"),
        ("server", "check", "--replay", "--help"),
    ],
)
def test_help_fits_a_screen(arguments: tuple[str, ...], run: Run) -> None:
    status, printed, _ = run(*arguments)
    assert status == 0
    assert len(printed.splitlines()) <= 40
    if len(arguments) > 1:
        assert "Example: samara" in printed


def test_the_help_begins_with_what_a_newcomer_needs(run: Run) -> None:
    first, *panels = run("--help")[1].split("╭─ ")[2:]
    named = re.findall(r"^│ ([a-z]+) ", first, re.MULTILINE)
    assert named == ["demo", "new", "simulate", "compare", "tune", "server", "client"]
    assert [panel.split(" ─")[0] for panel in panels] == [
        "Devices, phones, and rehearsals with them",
        "Models of runs, and privacy",
    ]


def test_tune_prints_what_it_reached_and_where_the_result_is(
    run: Run, settings: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "tuned"
    places = ("--model", settings["model.path"], "--data", settings["data.path"], "--task", "sst2")
    drawn = ("--set", "data.train=24", "--set", "data.validation=12", "--set", "data.test=12")
    counts = ("--steps", 4, "--set", "validate-every=2")
    further = ("--set", "threads=1", "--set", "model.max-length=40", "--out", out)
    status, printed, errors = run("tune", *places, *drawn, *counts, *further)
    assert (status, errors) == (0, "")
    for line in ("zero-shot, validation: loss", "step 0, validation", "step 4, validation"):
        assert line in printed
    assert str(out / "result.json") in printed.replace("\n", "")
    assert json.loads((out / "result.json").read_text())["config"]["steps"] == 4
    *_, applying, exporting = printed.splitlines()
    assert applying == f'next: samara adapter apply {out} "a text"'
    assert exporting == f"next: samara adapter export {out} --out model"
    baseline = ("--optimizer", "zero-shot", "--set", "threads=1", "--out", tmp_path / "baseline")
    assert "next:" not in run("tune", *places, *drawn, *baseline)[1]


def test_mistakes_in_tuning_are_reported_at_once_and_leave_nothing(
    run: Run, tmp_path: Path
) -> None:
    out = tmp_path / "tuned"
    wrong = ("--optimizer", "icl", "--space", "full", "--set", "queries=2")
    status, printed, errors = run("tune", *wrong, "--set", "stepz=3", "--out", out)
    assert (status, printed) == (1, "")
    assert "stepz: there is no such setting; did you mean steps?" in errors
    status, _, errors = run("tune", *wrong, "--out", out)
    assert "tune: 2 mistakes in the settings\n  space: icl trains nothing" in errors
    assert not out.exists()


@pytest.mark.slow
def test_a_readout_is_trained_without_libraries_that_others_need(tmp_path: Path) -> None:
    scenario = tmp_path / "readout.toml"
    scenario.write_text("rounds = 1\n[adapter]\nlayers = 'readout'\ndamping = 'none'\n")
    few: dict[str, Any] = {"steps": 1, "queries": 2, "batch": 4, "evaluate.limit": 4}
    small = assignments(
        few | {"threads": 1, "data.clients": 2, "data.partition": "dirichlet", "personal.rounds": 1}
    )
    program = f"""
import sys, samara
sys.argv = ["samara", "simulate", {str(scenario)!r}, "--out", {str(tmp_path / "run")!r}, *{small}]
try:
    samara.main()
except SystemExit as ended:
    assert not ended.code, ended.code
print("imported:", *sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    modules = set(done.stdout.rpartition("imported:")[2].split())
    assert {"torch", "flwr", "numba"} <= modules
    heavy = {"datasets", "flwr_datasets", "matplotlib", "pandas", "ray", "sklearn"}
    assert not heavy & modules
