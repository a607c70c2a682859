"""A federation that begins with what `samara tune` has trained."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Settings, config_of, ledger_of
from safetensors.numpy import load_file
from starts import start_for
from test_resume import serve_until_killed
from tuning import small, tuning_of

from client.training.model_runtime import load_run
from client.tuning.baselines.first_order import ADAPTER_NAME, BEST_FILE
from client.tuning.run import read_result as read_tuning
from client.tuning.run import tune
from client.tuning.tuning_setup import TuningSetup
from server.store import read_layout, replay_run
from shared.errors import ConfigError, ModelError
from shared.replay import digest, to_float32, zero_state
from shared.result import RunResult
from shared.start import START_FILE
from shared.tasks.objectives import cross_entropy
from simulations.adapter import FinishedRun, export
from simulations.comparison.columns import client_columns
from simulations.quick_look import quick_look
from simulations.simulate import simulate


@pytest.fixture
def tuning(settings: Settings, data_file: Path, tmp_path: Path) -> Settings:
    """Settings of a tuning run that trains the tensors of the run of `settings`."""
    adapter = {key: value for key, value in settings.items() if key.startswith("adapter.")}
    settings["model.max-length"] = 40
    folder = tmp_path / "tuned"
    return small(Path(settings["model.path"]), data_file, folder) | adapter | {"learning-rate": 0.1}


@pytest.fixture
def with_start(settings: Settings, tmp_path: Path) -> Settings:
    """Settings of a run that begins with a random start."""
    return settings | {"adapter.start": start_for(settings, tmp_path)}


@pytest.mark.parametrize("method", ["fo-adam", "prge"])
def test_a_federation_begins_with_the_scores_that_tune_ends_with(
    method: str, settings: Settings, tuning: Settings
) -> None:
    tuned = tuning_of(tuning, method=method)
    folder = tune(tuned)
    test = TuningSetup(tuned).splits["test"]
    runtime = load_run(config_of(settings, adapter__start=str(folder))).runtime
    scores = runtime.scores(zero_state(runtime.layout.size), test.prompts)
    result = read_tuning(folder)
    assert result["best_step"] > 0
    loss = float(cross_entropy(scores[None], test.labels)[0])
    assert loss == pytest.approx(result["test"]["loss"], abs=1e-6)
    if method == "fo-adam":
        best = load_file(folder / BEST_FILE)[ADAPTER_NAME]
        assert runtime.weight_map.weights(zero_state(len(best))) == pytest.approx(best, abs=2**-51)
    plain = load_run(config_of(settings)).runtime
    base = plain.scores(zero_state(plain.layout.size), test.prompts)
    np.testing.assert_array_equal(runtime.base_scores(test.prompts), base)


def test_a_run_with_a_start_verifies_exports_and_keeps_zero_shot(
    settings: Settings, with_start: Settings, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"personal.rounds": 1, "rounds": 2}
    folder = simulate(config_of(with_start | changes))
    plain = simulate(config_of(settings | changes, out=str(tmp_path / "plain")))
    layout = read_layout(folder)
    assert layout.start
    assert layout.weights_hash == read_layout(plain).weights_hash
    *_, last = replay_run(folder)
    run, other = RunResult.read(folder), RunResult.read(plain)
    assert digest(layout.hash, last.state).hex() == run.final_digest != other.final_digest
    assert run.run_id != other.run_id
    columns, without = client_columns(run), client_columns(other)
    assert columns["zero-shot"] == without["zero-shot"]
    assert columns["start"] == run.evaluations[1].columns["global"].clients
    assert "start" not in without
    opened = FinishedRun.at(folder)
    export(folder, None, tmp_path / "adapter")
    exported = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    b = [value for name, value in sorted(exported.items()) if name.endswith("lora_B.weight")]
    start = opened.weight_map.start
    assert start is not None
    elements = layout.tensor_slice(sorted(t.name for t in layout.tensors)[0])[0]
    np.testing.assert_array_equal(b[0].ravel(), to_float32(start.values + last.state)[elements])
    _, answers = quick_look(folder, "the film was good .")
    assert not np.array_equal(answers["base"], answers["global"])


def test_a_run_with_a_start_is_continued(with_start: Settings, tmp_path: Path) -> None:
    whole = simulate(config_of(with_start))
    config = config_of(with_start, out=str(tmp_path / "killed"))
    serve_until_killed(config, messages=5)
    assert ledger_of(simulate(config)) == ledger_of(whole)


def test_a_start_by_another_path_is_the_same_run(with_start: Settings, tmp_path: Path) -> None:
    first = RunResult.read(simulate(config_of(with_start, rounds=1)))
    copy = tmp_path / "elsewhere" / START_FILE
    copy.parent.mkdir()
    copy.write_bytes(Path(with_start["adapter.start"]).read_bytes())
    own = with_start | {"adapter.start": str(copy.parent), "out": str(tmp_path / "again")}
    again = RunResult.read(simulate(config_of(own, rounds=1)))
    assert (again.run_id, again.final_digest) == (first.run_id, first.final_digest)


def test_a_start_for_something_else_is_refused_by_name(
    settings: Settings, with_start: Settings, tmp_path: Path
) -> None:
    for changes, name in (
        ({"adapter.rank": 2}, "trained for adapter"),
        ({"adapter.seed": 5}, "trained for adapter"),
        ({"adapter.label-bias": True}, "trained for adapter"),
    ):
        with pytest.raises(ModelError, match=f"adapter.start: it was {name}"):
            load_run(config_of(with_start | changes))
    load_run(config_of(with_start, adapter__distribution="rademacher"))
    file = Path(with_start["adapter.start"])
    content = bytearray(file.read_bytes())
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    model = json.loads(header["__metadata__"]["samara"])["model_id"].encode()
    file.write_bytes(bytes(content).replace(model, b"0" * 64))
    with pytest.raises(ModelError, match=r"adapter\.start: it was trained for model 000000000000"):
        load_run(config_of(with_start))
    file.write_bytes(content[:-3])
    with pytest.raises(ModelError, match=r"start\.safetensors: not a start"):
        load_run(config_of(with_start))
    with pytest.raises(ConfigError, match=r"adapter\.start: .*nowhere: there is no such file"):
        simulate(config_of(settings, adapter__start=str(tmp_path / "nowhere")))


def test_tune_begins_with_the_base_model(tuning: Settings) -> None:
    with pytest.raises(ConfigError, match=r"adapter\.start: samara tune trains"):
        tuning_of(tuning, adapter__start="somewhere")
