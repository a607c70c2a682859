"""FedAvg, which is compared with federations, averages the clients' trained weights."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from samara.client.forward.trunk_cache import DiskCache
from samara.client.training.client_data import ClientData
from samara.client.training.model_runtime import load_run
from samara.command import app
from samara.shared.errors import ConfigError
from samara.shared.protocol.frames.instructions import Split
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig
from samara.simulations import finished
from samara.simulations.comparison.fed_avg import (
    FedAvg,
    check_fed_avg,
    fed_avg_beside,
    zeroth_order,
)
from samara.simulations.simulate import simulate

SETTINGS = {"adapter.layers": "top:1", "data.clients": 3, "rounds": 2, "steps": 2, "batch": 4}
SETTINGS |= {"personal.rounds": 0, "evaluate.limit": 4, "threads": 1, "queries": 2}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    out = tmp_path_factory.mktemp("run") / "out"
    config = RunConfig.of(SETTINGS | {"out": str(out)}, "test")
    return RunResult.read(simulate(config))


@pytest.mark.parametrize("space", ["LoRA", "LoRA-FA"])
def test_bytes_and_passes_are_those_of_weights_and_backward_passes(
    space: str, result: RunResult
) -> None:
    run = load_run(RunConfig.of(result.config, "test"))
    federation = FedAvg(run, space, 0.1)
    found, zeroth = federation.run(), zeroth_order(result)
    assert found.bytes_up == found.bytes_down == 4 * federation._space.size
    assert found.passes == 2 * 2 * 3 * 4
    assert zeroth.passes >= 2 * 2 * 4 * 4  # two directions under both signs, and the curvature
    assert zeroth.bytes_up < found.bytes_up
    assert 0 <= found.accuracy <= 1
    own = result.evaluations[-1].columns["global"].mean_client_auc
    assert zeroth.auc == own
    assert 0 <= found.auc <= 1


def test_the_mean_is_weighted_by_numbers_of_examples(
    result: RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, means = load_run(RunConfig.of(result.config, "test")), []
    federation = FedAvg(run, "LoRA-FA", 0.1)

    def trained(_: FedAvg, start: torch.Tensor, client: ClientData, number: int) -> torch.Tensor:
        return torch.full_like(start, float(client.client))

    def accuracy(_: FedAvg, theta: torch.Tensor) -> tuple[float, float]:
        means.append(theta)
        return 0.0, 0.5

    monkeypatch.setattr(FedAvg, "_trained", trained)
    monkeypatch.setattr(FedAvg, "_accuracy", accuracy)
    federation.run()
    counts = [len(client.tokenized(Split.TRAIN).labels) for client in federation._clients]
    expected = sum(index * count for index, count in enumerate(counts)) / sum(counts)
    torch.testing.assert_close(means[0], torch.full_like(means[0], expected))


def test_outputs_below_the_adapters_are_read_from_the_folder_of_the_run(
    result: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"trunk-cache-folder": str(tmp_path / "cache"), "rounds": 1}
    config = RunConfig.of(result.config | changes, "test")
    first = FedAvg(load_run(config), "LoRA-FA", 0.1).run()

    def missing(*_: object) -> None:
        raise AssertionError("an output was computed again")

    monkeypatch.setattr(DiskCache, "_put", missing)
    assert FedAvg(load_run(config), "LoRA-FA", 0.1).run() == first


def test_figures_beside_a_run_are_kept_in_its_folder(
    result: RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, said = Path(result.config["out"]), list[tuple[str, int, int]]()
    found = fed_avg_beside(folder, [0.1], lambda *done: said.append(done))
    first = "FedAvg, LoRA, η = 0.1"
    assert list(found) == ["zeroth order", first, "FedAvg, LoRA-FA, η = 0.1"]
    assert said[:2] == [(first, 1, 2), (first, 2, 2)]
    monkeypatch.delattr(FedAvg, "run")
    assert fed_avg_beside(folder, [0.1], lambda *_: None) == found
    with pytest.raises(AttributeError):
        fed_avg_beside(folder, [0.1, 0.2], lambda *_: None)
    with pytest.raises(AttributeError):  # another η of the same name
        fed_avg_beside(folder, [0.1 + 1e-9], lambda *_: None)
    monkeypatch.setattr(finished, "hash_whole_examples", lambda examples: "other data")
    with pytest.raises(AttributeError):
        fed_avg_beside(folder, [0.1], lambda *_: None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"adapter.layers": "readout"}, "this run has a readout; set adapter.layers to top:1"),
        ({"task": "texts"}, "this run trains texts"),
        (
            {"method": "local"},
            "--fed-avg: FedAvg trains one common model, but method local has none",
        ),
    ],
)
def test_what_fed_avg_cannot_train_is_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_fed_avg(RunConfig.of({"adapter.layers": "top:1"} | settings, "test"))


def test_the_command_ends_with_fed_avg_beside_the_run(result: RunResult, tmp_path: Path) -> None:
    """The run is already finished, and the command uses it."""
    scenario, out = tmp_path / "scenario.toml", str(result.config["out"])
    scenario.write_text("")
    sets = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
    beside = ("--out", out, "--fed-avg", "0.1")
    done = CliRunner().invoke(app, ["simulate", str(scenario), *sets, *beside])
    assert done.exit_code == 0, done.output
    assert "FedAvg, LoRA-FA" in done.output
    assert "AUC" in done.output
    assert (Path(out) / "fed_avg.json").is_file()
