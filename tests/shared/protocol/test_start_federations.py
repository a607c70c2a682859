"""A federation that starts from weights that `samara tune` has trained."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bases import basis_for
from federations import Settings, config_of, ledger_of, serve_until_killed
from safetensors.numpy import load_file
from starts import start_for
from tuning import small, tuning_of

from samara.client.personal.readout_file import READOUT_FILE
from samara.client.training.model_runtime import load_run
from samara.client.tuning.baselines.first_order import ADAPTER_NAME, BEST_FILE
from samara.client.tuning.run import read_result as read_tuning
from samara.client.tuning.run import tune
from samara.client.tuning.tuning_setup import TuningSetup
from samara.server.store import read_layout, replay_run
from samara.shared.errors import ConfigError, ModelError
from samara.shared.protocol.layout import READOUT_GROUP, Layout, Tensor
from samara.shared.protocol.replay import digest, to_float32, zero_state
from samara.shared.protocol.start import START_FILE, Start, read_start
from samara.shared.results.result import RunResult
from samara.shared.tasks.label_scores import cross_entropy
from samara.simulations.comparison.columns import client_columns
from samara.simulations.exports.adapter import FinishedRun, export
from samara.simulations.exports.quick_look import quick_look
from samara.simulations.simulate import simulate


@pytest.fixture
def tuning(settings: Settings, data_file: Path, tmp_path: Path) -> Settings:
    """Settings of a tuning run that trains the tensors of a federation with `settings`."""
    adapter = {key: value for key, value in settings.items() if key.startswith("adapter.")}
    settings["model.max-length"] = 40
    folder = tmp_path / "tuned"
    return small(Path(settings["model.path"]), data_file, folder) | adapter | {"learning-rate": 0.1}


def read_layout_of(settings: Settings) -> Layout:
    return load_run(config_of(settings)).runtime.layout


@pytest.fixture
def with_start(settings: Settings, tmp_path: Path) -> Settings:
    """Settings of a run that begins with a random start."""
    return settings | {"adapter.start": start_for(settings, tmp_path)}


@pytest.mark.parametrize(
    ("method", "layers"),
    [
        ("fo-adam", "top:2"),
        ("prge", "top:2"),
        ("fo-adam", "readout"),
        ("prge", "readout"),
        pytest.param("mezo", "readout", marks=pytest.mark.exhaustive),
        pytest.param("fo-adam", "readout,top:2", marks=pytest.mark.exhaustive),
        ("prge", "readout,top:2"),
    ],
)
def test_a_federation_begins_with_the_scores_that_tune_hands_on(
    method: str, layers: str, settings: Settings, tuning: Settings
) -> None:
    own = {"adapter.layers": layers}
    tuned = tuning_of(tuning | own, optimizer=method, space="lora-fa")
    folder = tune(tuned)
    splits = TuningSetup(tuned.complete(1)).splits
    runtime = load_run(config_of(settings | {"adapter.layers": "auto"}, adapter__start=str(folder)))
    runtime = runtime.runtime
    assert runtime.config.adapter.layers == layers
    state = zero_state(runtime.layout.size)
    result = read_tuning(folder)
    curve = {point["step"]: point for point in result["curve"]}
    assert result["start_step"] == min(curve, key=lambda step: curve[step]["loss"]) > 0
    validation = runtime.scores(state, splits["validation"].prompts)
    loss = float(cross_entropy(validation[None], splits["validation"].labels)[0])
    assert loss == pytest.approx(curve[result["start_step"]]["loss"], abs=1e-6)
    if result["best_step"] == result["start_step"]:
        scores = runtime.scores(state, splits["test"].prompts)
        loss = float(cross_entropy(scores[None], splits["test"].labels)[0])
        assert loss == pytest.approx(result["test"]["loss"], abs=1e-6)
        if method == "fo-adam":
            best = load_file(folder / BEST_FILE)[ADAPTER_NAME]
            assert runtime.weight_map.weights(state) == pytest.approx(best, abs=2**-51)
    test = splits["test"]
    plain = load_run(config_of(settings | own)).runtime
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


def test_a_readout_goes_from_tune_through_two_federations(
    settings: Settings, tuning: Settings, tmp_path: Path
) -> None:
    tuned = tune(tuning_of(tuning | {"adapter.layers": "readout"}, optimizer="fo-adam"))
    changes: dict[str, Any] = {"adapter.layers": "auto", "adapter.start": str(tuned), "rounds": 2}
    changes["personal.rounds"] = 1
    first = simulate(config_of(settings | changes, out=str(tmp_path / "first")))
    layout = read_layout(first)
    assert layout.start == read_start(str(tuned)).sha256
    assert [tensor.name for tensor in layout.tensors] == ["readout"]
    assert "start" in RunResult.read(first).automatic["adapter.layers"]
    *_, last = replay_run(first)
    finished = read_start(str(first))
    np.testing.assert_array_equal(
        finished.values, read_start(str(tuned)).values + last.state, strict=True
    )
    changes |= {"adapter.start": str(first)}
    config = config_of(settings | changes, out=str(tmp_path / "second"))
    serve_until_killed(config, messages=4)
    second = simulate(config)
    assert read_layout(second).start == finished.sha256
    *_, end = replay_run(second)
    result = RunResult.read(second)
    assert digest(read_layout(second).hash, end.state).hex() == result.final_digest
    columns = client_columns(result)
    assert columns["zero-shot"] == client_columns(RunResult.read(first))["zero-shot"]
    opened = FinishedRun.at(second)
    weights = opened.weight_map.weights(end.state)
    np.testing.assert_array_equal(weights, to_float32(finished.values + end.state))
    export(second, None, tmp_path / "exported")
    assert (tmp_path / "exported" / READOUT_FILE).exists()


def test_the_start_of_a_finished_run_has_its_lifted_weights(
    with_start: Settings, tmp_path: Path
) -> None:
    plain = {key: value for key, value in with_start.items() if key != "adapter.start"}
    basis = with_start | {"adapter.basis": basis_for(plain, tmp_path)}
    first = simulate(config_of(basis, rounds=1, out=str(tmp_path / "first")))
    opened = FinishedRun.at(first)
    weights = opened.weight_map.weights(opened.model())
    changes = {"adapter.start": str(first), "adapter.layers": "auto"}
    runtime = load_run(config_of(plain | changes)).runtime
    np.testing.assert_array_equal(runtime.weight_map.weights(zero_state(len(weights))), weights)


def test_clusters_leave_no_start(settings: Settings) -> None:
    clusters = {"method": "cluster", "cohort.clustering-rounds": 1, "rounds": 2}
    folder = simulate(config_of(settings | clusters))
    with pytest.raises(ConfigError, match=r"start\.safetensors: there is no such file"):
        config_of(settings | {"adapter.start": str(folder), "adapter.layers": "auto"})


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
    for changes, difference in (
        ({"adapter.rank": 2}, r"adapter\.rank is \d+ in the start and 2 here"),
        ({"adapter.label-bias": True}, "adapter.label-bias is false in the start and true here"),
        ({"adapter.layers": "readout"}, "its tensors are .*, here readout"),
    ):
        with pytest.raises(ModelError, match=f"trained for adapter .*{difference}.*; set"):
            load_run(config_of(with_start | changes))
    file = Path(with_start["adapter.start"])
    content = bytearray(file.read_bytes())
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    model = json.loads(header["__metadata__"]["samara"])["model_id"].encode()
    file.write_bytes(bytes(content).replace(model, b"0" * 64))
    with pytest.raises(ModelError, match=r"the start was trained for model 000000000000"):
        load_run(config_of(with_start))
    file.write_bytes(content[:-3])
    with pytest.raises(ModelError, match=r"start\.safetensors: not a start"):
        load_run(config_of(with_start))
    with pytest.raises(ConfigError, match=r"adapter\.start: .*nowhere: there is no such file"):
        simulate(config_of(settings, adapter__start=str(tmp_path / "nowhere")))


def test_a_readout_with_another_damping_or_task_is_refused_by_name(
    settings: Settings, tmp_path: Path
) -> None:
    readout = settings | {"adapter.layers": "readout"}
    start = {"adapter.start": start_for(readout, tmp_path)}
    with pytest.raises(ModelError, match="damping is random-tokens in the start and none here"):
        load_run(config_of(readout | start, adapter__damping="none"))
    three = replace(read_layout_of(readout), tensors=(Tensor("readout", 2, 32, READOUT_GROUP),))
    runtime = load_run(config_of(readout)).runtime
    weights = np.zeros(64, np.float32)
    other = Start.from_weights(weights, three, runtime.model_id, "readout")
    (tmp_path / START_FILE).write_bytes(other.encode())
    with pytest.raises(ModelError, match="number of labels is 3 in the start and 2 here"):
        load_run(config_of(readout | start))


def test_layers_follow_a_start_only_where_they_are_open(
    settings: Settings, with_start: Settings
) -> None:
    auto = config_of(with_start | {"adapter.layers": "auto"})
    assert auto.adapter.layers == settings["adapter.layers"]
    assert config_of(auto.flat()) == auto
    assert config_of(with_start | {"adapter.layers": "all"}).adapter.layers == "all"
    start = Path(with_start["adapter.start"])
    old = replace(read_start(str(start)), layout=None, layers="")
    start.write_bytes(old.encode())
    assert read_start(str(start)).weights_hash == old.weights_hash
    assert config_of(with_start | {"adapter.layers": "auto"}).adapter.layers == "readout"
    load_run(config_of(with_start))


def test_tune_begins_with_the_base_model(tuning: Settings) -> None:
    with pytest.raises(ConfigError, match=r"adapter\.start: samara tune trains"):
        tuning_of(tuning, adapter__start="somewhere")
