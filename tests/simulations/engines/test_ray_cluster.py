"""The resources of a simulated client on a Ray cluster, and the files that nodes need."""

from pathlib import Path
from typing import Any

import pytest

from samara.shared.errors import SamaraError
from samara.shared.settings.blobs import publish_blobs
from samara.shared.settings.config import RunConfig
from samara.shared.storage.blob_store import BlobStore
from samara.simulations.engines.ray_cluster import (
    check_room,
    client_resources,
    clients_at_once,
    needed_paths,
)


def config_of(**settings: Any) -> RunConfig:
    return RunConfig.of({key.replace("__", "."): v for key, v in settings.items()}, "test")


def node(cpus: float, gpus: float = 0.0, alive: bool = True) -> dict[str, Any]:
    resources = {"CPU": cpus} | ({"GPU": gpus} if gpus else {})
    return {"Alive": alive, "Resources": resources, "NodeManagerAddress": "10.0.0.1"}


@pytest.mark.parametrize(("device", "gpus"), [("cpu", 0.0), ("cuda", 1.0), ("cuda:0", 1.0)])
def test_a_client_on_cuda_holds_a_gpu(device: str, gpus: float) -> None:
    config = config_of(threads=3).with_values({"model.torch-device": device})
    assert client_resources(config) == {"num_cpus": 3.0, "num_gpus": gpus}


def test_one_of_several_gpus_cannot_be_chosen() -> None:
    config = config_of(threads=1).with_values({"model.torch-device": "cuda:1"})
    with pytest.raises(SamaraError, match=r"cuda:1: Ray gives each client a separate GPU"):
        client_resources(config)


@pytest.mark.parametrize(
    ("nodes", "cpus", "gpus", "clients"),
    [
        ([node(4), node(2)], 1, 0, 6),
        ([node(4), node(2)], 3, 0, 1),  # not 2: a client is on one node
        ([node(8, 2), node(8)], 1, 1, 2),
        ([node(1, 4)], 1, 1, 1),
        ([node(8), node(8, alive=False)], 8, 0, 1),
        ([node(8)], 1, 1, 0),
    ],
)
def test_clients_find_room_node_by_node(
    nodes: list[dict[str, Any]], cpus: float, gpus: float, clients: int
) -> None:
    resources = {"num_cpus": float(cpus), "num_gpus": float(gpus)}
    assert clients_at_once(nodes, resources) == clients
    if clients:
        check_room(nodes, resources)
    else:
        with pytest.raises(SamaraError, match=r"10\.0\.0\.1 has 8 CPUs and 0 GPUs"):
            check_room(nodes, resources)


def test_every_node_needs_what_the_settings_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name in ("rows.csv", "start.safetensors"):
        Path(name).write_text(name)
    settings = config_of(
        data__path="rows.csv", model__path="of/the-hub", task="sst2", personal__rounds=0
    )
    settings = settings.with_values({"adapter.start": "start.safetensors"})
    config = publish_blobs(settings, BlobStore())
    needed = needed_paths(config, Path("out"))
    assert {str(tmp_path), str(tmp_path / "rows.csv")} < set(needed)
    assert str(BlobStore().folder) in str(set(needed) - {str(tmp_path), str(tmp_path / "rows.csv")})
    own = needed_paths(config.with_values({"personal.rounds": 3}), Path("out"))
    assert set(own) - set(needed) == {str(tmp_path / "out")}
