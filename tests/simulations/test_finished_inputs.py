"""A run whose task or data have changed is neither found finished nor continued."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from samara.client.protocol.simulated_client import RUNS
from samara.client.training import client_data
from samara.shared.errors import ConfigError
from samara.shared.settings.config import RunConfig
from samara.simulations.finished import find_finished, hold_inputs
from samara.simulations.simulate import simulate

TASK = """
kind = "classification"
name = "mood"
text = "{text}"
question = " it was {word} ."
words = ["terrible", "great"]
labels = [0, 1]
"""


@pytest.fixture
def files(data_file: Path, tmp_path: Path) -> dict[str, Path]:
    files = {"data": tmp_path / "own.jsonl", "task": tmp_path / "own.toml"}
    shutil.copy(data_file, files["data"])
    files["task"].write_text(TASK)
    return files


def config_of(settings: dict[str, Any], files: dict[str, Path]) -> RunConfig:
    own = {"data.path": str(files["data"]), "task": str(files["task"]), "rounds": 1}
    return RunConfig.of(settings | own, "test")


@pytest.mark.parametrize("name", ["data", "task"])
def test_a_run_that_was_begun_with_other_files_is_not_continued(
    name: str, settings: dict[str, Any], files: dict[str, Path], tmp_path: Path
) -> None:
    config = config_of(settings, files)
    for _ in range(2):
        hold_inputs(tmp_path / "run", config)
    before = files[name].read_text()
    files[name].write_text(before.replace("great", "fine"))
    with pytest.raises(
        ConfigError, match=rf"the content of {name} has changed .*; restore the old"
    ):
        hold_inputs(tmp_path / "run", config)
    files[name].write_text(before)
    hold_inputs(tmp_path / "run", config)


def test_a_finished_run_stands_for_its_own_data_alone(
    readout: dict[str, Any], files: dict[str, Path], tmp_path: Path
) -> None:
    config = config_of(readout, files)
    assert simulate(config) == tmp_path / "run"
    assert find_finished(config) == tmp_path / "run"
    rows = files["data"].read_text().splitlines()
    files["data"].write_text("\n".join(rows[::-1]))
    with pytest.raises(ConfigError, match="the content of data has changed"):
        simulate(config)
    files["data"].unlink()  # the result still stands
    assert find_finished(config) == tmp_path / "run"


def test_a_simulation_reads_its_data_once(
    readout: dict[str, Any], files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, read = client_data.load_examples, list[str]()

    def count(path: str, *rest: Any) -> Any:
        read.append(path)
        return plain(path, *rest)

    monkeypatch.setattr(client_data, "load_examples", count)
    RUNS.clear()
    simulate(config_of(readout, files))
    assert read == [str(files["data"])]
