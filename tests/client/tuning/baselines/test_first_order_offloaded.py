"""`samara tune` with the optimizer on the host: equal bits, resumed runs, exported models."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel
from tuning import Settings, small, tuned, tuning_of

from samara.client.offload.linear_layers import linear_weights
from samara.client.tuning.baselines.first_order import (
    BEST_FILE,
    CHECKPOINT_FILE,
    MODEL_FOLDER,
    FirstOrder,
)
from samara.client.tuning.projector_log import PROJECTORS_FILE
from samara.client.tuning.run import RESULT_FILE, tune
from samara.shared.errors import ModelError, TrainingError
from samara.shared.model.loading import load_base_model

ModelFolder = Callable[[str], Path]
LOADERS = {
    "causal": AutoModelForCausalLM,
    "masked": AutoModelForMaskedLM,
    "encoder": AutoModel,
}


@pytest.fixture
def settings(model_folder: ModelFolder, data_file: Path, tmp_path: Path) -> Settings:
    return small(model_folder("causal"), data_file, tmp_path / "run")


def events(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / PROJECTORS_FILE).read_text().splitlines()
    return [json.loads(line) for line in lines]


def stopping_after(steps: int) -> Callable[[int, int], None]:
    def on_step(done: int, whole: int) -> None:
        if done == steps:
            raise KeyboardInterrupt

    return on_step


@pytest.mark.parametrize("micro_batch", [0, 3])
def test_whole_gradients_on_the_host_give_the_bits_of_resident_adam(
    micro_batch: int, settings: Settings, tmp_path: Path
) -> None:
    changes = {"space": "full", "micro_batch": micro_batch, "learning_rate_schedule": "linear"}
    found = [
        tuned(tuning_of(settings, optimizer=method, out=str(tmp_path / method), **changes))
        for method in ("fo-adam", "zero-offload")
    ]
    for key in ("digest", "curve", "test"):
        assert found[0][key] == found[1][key]
    assert len({point["loss"] for point in found[0]["curve"]}) == 3


def test_a_subspace_of_full_size_gives_the_bits_of_zero_offload(
    settings: Settings, tmp_path: Path
) -> None:
    whole = tuned(tuning_of(settings, optimizer="zero-offload", space="linear"))
    changes = {"optimizer": "lsp", "out": str(tmp_path / "lsp"), "lsp__subspace_size": 10_000}
    subspace = tuned(tuning_of(settings, **changes))
    for key in ("digest", "curve", "test"):
        assert whole[key] == subspace[key]
    smaller = tuned(
        tuning_of(settings, **changes | {"lsp__subspace_size": 8, "out": str(tmp_path / "8")})
    )
    assert smaller["digest"] != subspace["digest"]


@pytest.mark.parametrize(
    ("stop", "dtype"), [(3, "float32"), (4, "float32"), (5, "float32"), (3, "bfloat16")]
)
def test_an_interrupted_run_in_subspaces_goes_on_to_the_same_result(
    stop: int, dtype: str, settings: Settings, tmp_path: Path
) -> None:
    changes = {"optimizer": "lsp", "steps": 6, "lsp__check_frequency": 2, "lsp__subspace_size": 8}
    changes |= {"lsp__nonzeros": 2, "lsp__learning_steps": 5, "micro_batch": 3}
    changes["model__dtype"] = dtype
    whole = tuned(tuning_of(settings, out=str(tmp_path / "whole"), **changes))
    config = tuning_of(settings, **changes)
    with pytest.raises(KeyboardInterrupt):
        tune(config, stopping_after(stop))
    assert not (Path(config.out) / RESULT_FILE).exists()
    assert tuned(config) == whole
    checks = [events(folder) for folder in (tmp_path / "whole", Path(config.out))]
    for check in checks[0] + checks[1]:
        del check["seconds"], check["processor_seconds"]
    assert checks[0] == checks[1]
    assert [check["step"] for check in checks[0]] == [0, 2, 4]
    assert all(check["learned"] > 0 for check in checks[0])
    assert all(check["bias"] < check["bias_before"] for check in checks[0])


@pytest.mark.parametrize("examples", [0, 8])
def test_projectors_are_checked_on_so_many_examples(
    examples: int, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The micro-batches' gradients add up to the gradient of the whole sample."""
    seen = list[int]()
    sampled = FirstOrder._batch_loss

    def batch_loss(self: FirstOrder, some: Any, whole: int) -> torch.Tensor:
        seen.append(len(some))
        return sampled(self, some, whole)

    monkeypatch.setattr(FirstOrder, "_batch_loss", batch_loss)
    changes = {"optimizer": "lsp", "steps": 1, "batch": 4, "lsp__check_examples": examples}
    changes |= {"lsp__subspace_size": 8, "lsp__nonzeros": 2, "lsp__learning_steps": 5}
    biases = []
    for micro_batch, passes in ((0, [examples or 4]), (3, [3, 3, 2] if examples else [3])):
        seen.clear()
        out = tmp_path / str(micro_batch)
        tune(tuning_of(settings, micro_batch=micro_batch, out=str(out), **changes))
        assert seen[: len(passes)] == passes
        assert sum(seen[len(passes) :]) == 4  # the step
        (check,) = events(out)
        biases.append((check["bias_before"], check["bias"]))
    if examples:
        assert biases[0] == pytest.approx(biases[1], rel=1e-3)
    else:
        assert biases[0] != pytest.approx(biases[1], rel=1e-3)  # other examples


def test_a_checkpoint_holds_every_projector(settings: Settings) -> None:
    folder = tune(tuning_of(settings, optimizer="lsp", lsp__subspace_size=8, lsp__nonzeros=2))
    with safe_open(folder / CHECKPOINT_FILE, "pt") as stored:
        names = set(stored.keys())
        shapes = {name: tuple(stored.get_slice(name).get_shape()) for name in names}
    weights = {name for name in names if name.startswith("model.")}
    assert len(weights) >= 6
    for name in weights:
        rows, columns = shapes[name]
        assert shapes[f"exp_avg.{name}"] == shapes[f"exp_avg_sq.{name}"] == (8, 8)
        assert shapes[f"left.values.{name}"] == shapes[f"left.positions.{name}"] == (rows, 2)
        assert shapes[f"right.values.{name}"] == shapes[f"right.positions.{name}"] == (columns, 2)


def test_a_projector_that_does_not_fit_is_named(settings: Settings) -> None:
    config = tuning_of(settings, optimizer="lsp", lsp__subspace_size=8, lsp__nonzeros=2)
    with pytest.raises(KeyboardInterrupt):
        tune(config, stopping_after(3))
    file = Path(config.out) / CHECKPOINT_FILE
    with safe_open(file, "pt") as stored:
        metadata = stored.metadata()
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    tensors[next(name for name in tensors if name.startswith("left.positions"))][0, 0] = 8
    save_file(tensors, file, metadata)
    with pytest.raises(
        TrainingError, match=r"damaged: left\.positions\S+ has values that are not from 0 to 7"
    ):
        tune(config)


@pytest.mark.parametrize(
    ("method", "family"),
    [
        ("lsp", "causal"),
        ("lsp", "encoder"),
        ("zero-offload", "masked"),
        pytest.param("lsp", "masked", marks=pytest.mark.exhaustive),
        pytest.param("zero-offload", "causal", marks=pytest.mark.exhaustive),
        pytest.param("zero-offload", "encoder", marks=pytest.mark.exhaustive),
        pytest.param("fo-adam", "causal", marks=pytest.mark.exhaustive),
    ],
)
def test_the_best_state_is_a_folder_that_transformers_loads(
    method: str, family: str, settings: Settings, model_folder: ModelFolder, tmp_path: Path
) -> None:
    folder = model_folder(family)
    changes = {"optimizer": method, "model__path": str(folder), "lsp__subspace_size": 8}
    if method != "lsp":
        changes = {"optimizer": method, "model__path": str(folder), "space": "full"}
    config = tuning_of(settings, learning_rate=0.01, **changes)
    result = tuned(config)
    exported = Path(config.out) / MODEL_FOLDER
    network = LOADERS[family].from_pretrained(exported)
    before = LOADERS[family].from_pretrained(folder)
    moved = [
        not torch.equal(new, old)
        for new, old in zip(network.parameters(), before.parameters(), strict=True)
    ]
    assert any(moved) == (result["best_step"] > 0)
    with safe_open(Path(config.out) / BEST_FILE, "pt") as best:
        weights = dict(network.named_parameters())
        assert all(torch.equal(best.get_tensor(name), weights[name]) for name in best.keys())  # noqa: SIM118
    again = tuning_of(
        settings, optimizer="zero-shot", model__path=str(exported), out=str(tmp_path / "again")
    )
    assert load_base_model(str(exported)).family == family
    found = tuned(again)["test"]
    if family == "encoder":  # its label prompts are those of the base model while it is trained
        return
    assert found["loss"] == pytest.approx(result["test"]["loss"], abs=1e-5)


def test_a_model_that_cannot_be_written_is_an_error(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(error: Exception) -> Callable[..., None]:
        def save(*arguments: object, **options: object) -> None:
            raise error

        return save

    config = tuning_of(settings, optimizer="zero-offload", steps=2)
    folder = Path(config.out)
    for error in (OSError(28, "No space left on device"), SafetensorError("No space left")):
        with monkeypatch.context() as patched:
            patched.setattr(PreTrainedModel, "save_pretrained", full(error))
            with pytest.raises(TrainingError, match=r"model: cannot be written: No space left"):
                tune(config)
        assert not (folder / RESULT_FILE).exists()
        assert not (folder / MODEL_FOLDER).exists()
    assert tuned(config)["digest"]
    assert (folder / MODEL_FOLDER / "config.json").exists()


def test_linear_layers_are_found_and_embeddings_are_not() -> None:
    network = nn.Module()
    network.embed = nn.Embedding(10, 4)
    network.up = nn.Linear(4, 6)
    network.head = nn.Linear(4, 10, bias=False)
    network.norm = nn.LayerNorm(4)
    assert set(linear_weights(network)) == {"up.weight", "head.weight"}
    network.head.weight = network.embed.weight
    assert set(linear_weights(network)) == {"up.weight"}
    with pytest.raises(ModelError, match="no linear layers"):
        linear_weights(nn.Sequential(nn.Embedding(3, 3)))
