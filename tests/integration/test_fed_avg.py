"""FedAvg, with which federations are compared, averages what clients train."""

import pytest
import torch

from benchmarks.accuracy.fed_avg import FedAvg, zeroth_order
from client.training.client_data import ClientData
from shared.config import RunConfig
from shared.frames.instructions import Split
from shared.result import RunResult
from simulations.simulate import simulate


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    settings = {"adapter.layers": "top:1", "data.clients": 3, "rounds": 2, "steps": 2, "batch": 4}
    fewer = {"personal.rounds": 0, "evaluate.limit": 4, "threads": 1, "queries": 2}
    out = tmp_path_factory.mktemp("run") / "out"
    config = RunConfig.of(settings | fewer | {"out": str(out)}, "test")
    return RunResult.read(simulate(config))


@pytest.mark.parametrize("space", ["LoRA", "LoRA-FA"])
def test_bytes_and_passes_are_those_of_weights_and_backward_passes(
    space: str, result: RunResult
) -> None:
    federation = FedAvg(RunConfig.of(result.config, "test"), space, 0.1)
    found, zeroth = federation.run(), zeroth_order(result)
    assert found.bytes_up == found.bytes_down == 4 * federation._space.size
    assert found.passes == 2 * 2 * 3 * 4
    assert zeroth.passes >= 2 * 2 * 4 * 4  # two directions under both signs, and the curvature
    assert zeroth.bytes_up < found.bytes_up
    assert 0 <= found.accuracy <= 1


def test_the_mean_is_weighted_by_numbers_of_examples(
    result: RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, means = FedAvg(RunConfig.of(result.config, "test"), "LoRA-FA", 0.1), []

    def trained(_: FedAvg, start: torch.Tensor, client: ClientData, number: int) -> torch.Tensor:
        return torch.full_like(start, float(client.client))

    def accuracy(_: FedAvg, theta: torch.Tensor) -> float:
        means.append(theta)
        return 0.0

    monkeypatch.setattr(FedAvg, "_trained", trained)
    monkeypatch.setattr(FedAvg, "_accuracy", accuracy)
    federation.run()
    counts = [len(client.tokenized(Split.TRAIN).labels) for client in federation._clients]
    expected = sum(index * count for index, count in enumerate(counts)) / sum(counts)
    torch.testing.assert_close(means[0], torch.full_like(means[0], expected))
