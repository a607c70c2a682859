"""Runs of `samara tune` on pretended GPUs end with the results of the CPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerator import pretended_gpus
from tuning import Settings, small, tuned, tuning_of

ModelFolder = Callable[[str], Path]
FEW: Settings = {"data.train": 8, "data.validation": 4, "data.test": 4, "steps": 1, "batch": 2}
LSP = {
    "lsp__subspace_size": 8,
    "lsp__nonzeros": 2,
    "lsp__learning_steps": 2,
    "lsp__check_frequency": 1,
}


def case(method: str, space: str, device: str, /, **more: Any) -> Any:
    name = "-".join((method, space, device, more.get("model__stream", "off")))
    asked = {"optimizer": method, "space": space, "model__torch_device": device} | more
    is_first = (method, space, more.get("model__stream")) in FIRST
    return pytest.param(asked, id=name, marks=[] if is_first else pytest.mark.exhaustive)


FIRST = {("prge", "lora-fa", "disk"), ("mezo", "full", "host")}


@pytest.mark.parametrize(
    "asked",
    [
        case("prge", "lora-fa", "cuda:1", model__stream="disk"),
        case("mezo", "full", "cuda", model__stream="host"),
        case("mezo", "full", "cuda:1", model__stream="disk"),
        case("mezo", "full", "cuda", model__stream="disk", stream_compression="bfloat16"),
        case("mezo", "lora", "cuda:1", model__stream="host"),
        case("mezo", "prefix", "cuda:1", model__stream="disk"),
        case("mezo", "vera", "cuda:1"),
        case("mezo", "head", "cuda:1"),
        case("prge", "lora-fa", "cuda:1"),
        case("fo-adam", "lora-fa", "cuda:1"),
        case("fo-adam", "prefix", "cuda"),
        case("zero-offload", "full", "cuda:1"),
        case("lsp", "linear", "cuda:1", **LSP),
        case("lsp", "linear", "cuda:0", model__dtype="bfloat16", **LSP),
    ],
)
def test_a_gpu_ends_a_run_where_the_cpu_does(
    asked: dict[str, Any],
    model_folder: ModelFolder,
    data_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Triton's interpreter is slow; its launches have tests of their own.
    monkeypatch.setenv("SAMARA_REPLAY_BACKEND", "numba")

    def settings(name: str) -> Settings:
        return small(model_folder("causal"), data_file, tmp_path / name) | FEW

    plain = {key: value for key, value in asked.items() if key != "model__torch_device"}
    wanted = tuned(tuning_of(settings("cpu"), **plain))
    with pretended_gpus() as gpus:
        found = tuned(tuning_of(settings("gpu"), **asked))
        device = gpus.place(asked["model__torch_device"])
        assert [bool(gpus.launches[place]) for place in gpus.launches] == [
            place == device for place in gpus.launches
        ]
    near = 1e-2 if asked.get("model__dtype") == "bfloat16" else 1e-4
    assert [p["loss"] for p in found["curve"]] == pytest.approx(
        [p["loss"] for p in wanted["curve"]], rel=near
    )
    if asked["optimizer"] in ("mezo", "prge"):  # gradients are computed by other products there
        assert found["digest"] == wanted["digest"]


@pytest.mark.exhaustive
def test_peak_memory_is_that_of_the_gpu(
    model_folder: ModelFolder, data_file: Path, tmp_path: Path
) -> None:
    from samara.client.tuning.run import read_result, tune

    asked = {"optimizer": "fo-adam", "space": "lora-fa", "model__torch_device": "cuda:1"}
    settings = small(model_folder("causal"), data_file, tmp_path / "run") | FEW
    with pretended_gpus() as gpus:
        folder = tune(tuning_of(settings, **asked))
        assert read_result(folder)["peak_memory_bytes"] == gpus.peak[torch.device("cuda:1")] > 0
