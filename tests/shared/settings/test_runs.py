"""The run id is equal for runs that compute the same numbers, wherever and however they run."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import layout_of

import samara.command
from samara.shared.errors import LedgerError
from samara.shared.settings.config import RunConfig
from samara.shared.settings.run_settings import check_settings, record_settings
from samara.shared.settings.runs import run_id_of
from samara.shared.settings.setting import SETTINGS_FILE, describe

OTHER: dict[str, Any] = {
    "memory-budget": 2**30,
    "threads": 3,
    "trunk-cache-folder": "cache",
    "out": "elsewhere",
    "model.path": "moved",
    "data.scalar-limit": 2.0,
    "data.least-batch": 2,
    "data.scalars-per-example": 2.0,
    "data.epsilon-limit": 8.0,
    "evaluate.passages": 2,
    "data.watch": True,
    "data.keep": 5,
    "data.keep-days": 2.0,
    "model.stream": "disk",
    "ledger.snapshot-every": 7,
    # What the server checks of hellos before a run begins.
    "cohort.quorum": 3,
    "cohort.layout-hash": "00" * 32,
    "cohort.model-id": "00" * 32,
    # The layout's hash has the content of these files.
    "adapter.basis": "a.basis",
    "adapter.damping": "a.damping",
    "adapter.start": "start.safetensors",
    # Simulations have no faults, and a rehearsal serves a run without them.
    "rehearsal.faults": '[{"kind": "link-cut", "client": 0, "at": 1.0}]',
}


def run_id(settings: dict[str, Any], model_id: bytes = bytes(32), size: int = 20) -> bytes:
    return run_id_of(RunConfig.of(settings, "test"), layout_of(size), model_id)


@pytest.mark.parametrize(("key", "value"), list(OTHER.items()))
def test_places_and_ways_of_execution_are_not_in_the_run_id(key: str, value: object) -> None:
    # a run chooses these settings by basis and start
    own = {"adapter.layers": "top:1", "objective": "cross-entropy"}
    assert run_id(own | {key: value}) == run_id(own)


def test_exactly_these_settings_are_not_in_the_run_id() -> None:
    apart = {key for key, setting in describe(RunConfig).items() if not setting.identity}
    assert apart == set(OTHER)


@pytest.mark.parametrize(
    ("key", "value"),
    [("seed", 1), ("rounds", 3), ("grouping", "inner"), ("micro-batch", 4), ("adapter.rank", 3)],
)
def test_what_decides_the_numbers_is_in_the_run_id(key: str, value: object) -> None:
    assert run_id({key: value}) != run_id({})


def test_data_are_known_by_their_path_and_the_model_by_its_id() -> None:
    own = {"model.path": "m", "task": "sst2"}
    assert run_id(own | {"data.path": "one"}) != run_id(own | {"data.path": "other"})
    assert run_id({}, bytes(32)) != run_id({}, bytes([1] * 32))
    assert run_id({}, size=20) != run_id({}, size=22)


def test_the_settings_of_a_run_stay_those_of_its_begin(tmp_path: Path) -> None:
    begun = RunConfig.of({"rounds": 6}, "test")
    check_settings(tmp_path, begun)  # nothing is there yet
    record_settings(tmp_path, begun)
    check_settings(tmp_path, RunConfig.of({"rounds": 6, "threads": 3}, "test"))
    edited = RunConfig.of({"rounds": 8, "cohort.fraction": 0.5}, "test")
    differs = r"cohort.fraction \(1.0 there, 0.5 here\), rounds \(6 there, 8 here\); a run keeps"
    with pytest.raises(LedgerError, match=differs):
        check_settings(tmp_path, edited)
    record_settings(tmp_path, edited)
    check_settings(tmp_path, begun)


def test_a_setting_of_a_later_version_differs(tmp_path: Path) -> None:
    config = RunConfig.of({"rounds": 6}, "test")
    record_settings(tmp_path, config)
    file = tmp_path / SETTINGS_FILE
    settings = json.loads(file.read_text())
    file.write_text(json.dumps(settings | {"of-a-later-version": 1}))
    with pytest.raises(LedgerError, match=r"of-a-later-version \(1 there, None here\); a run"):
        check_settings(tmp_path, config)


def test_a_server_with_an_edited_scenario_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from samara.server.live.live_config import read_live_config

    run, scenario = tmp_path / "run", tmp_path / "field.toml"
    run.mkdir()
    scenario.write_text("rounds = 6\n")
    record_settings(run, read_live_config(scenario, [f"out={run}"], "test"))
    scenario.write_text("rounds = 8\n")
    monkeypatch.setattr(
        sys, "argv", ["samara", "server", "up", "--run", str(run), str(scenario), "--insecure"]
    )
    with pytest.raises(SystemExit) as ended:
        samara.command.main()
    assert ended.value.code == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "begun with other settings: rounds (6 there, 8 here); a run keeps its settings" in said
    assert [file.name for file in run.iterdir()] == [SETTINGS_FILE]
