"""The measurement of an informed basis: the variance it explains, its scale, and the command."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bases import ORIGIN
from federations import Settings, config_of

from samara.client.training import informed_basis
from samara.client.training.informed_basis import (
    leading_vectors,
    prediction_gradients,
    prompts_around,
    random_texts,
    share_of_gradients,
)
from samara.client.training.model_runtime import ModelRuntime, load_run
from samara.shared.errors import ConfigError, DataError, ModelError
from samara.shared.protocol.basis import Basis, read_basis
from samara.shared.tasks.catalog import load_task
from samara.simulations.exports.basis_file import write_basis
from samara.simulations.exports.commands import basis
from samara.simulations.simulate import simulate

SIZES = {"TEXTS": 120, "PROBE_TEXTS": 20, "BASIS_SIZE": 40}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in SIZES.items():
        monkeypatch.setattr(informed_basis, name, size)
    monkeypatch.setattr("samara.simulations.exports.basis_file.TEXTS", SIZES["TEXTS"])
    monkeypatch.setattr("samara.simulations.exports.basis_file.PROBE_TEXTS", SIZES["PROBE_TEXTS"])


@pytest.fixture
def runtime(settings: Settings) -> ModelRuntime:
    return load_run(config_of(settings)).runtime


@pytest.mark.parametrize("family", ["causal", "masked", "encoder"])
def test_gradients_of_single_texts_are_those_of_the_loss(
    family: str, settings: Settings, model_folder: Callable[[str], Path]
) -> None:
    runtime = load_run(config_of(settings, model__path=str(model_folder(family)))).runtime
    prompts = prompts_around(runtime, load_task("sst2"), random_texts(runtime, 6))
    together = prediction_gradients(runtime, prompts)
    assert together.shape == (6, runtime.layout.element_count)
    state = np.random.default_rng(0).integers(-(2**38), 2**38, runtime.layout.size)
    moved = state.astype(np.float64) * 2.0**-51
    slopes = np.abs(together.astype(np.float64) @ moved)
    # each gradient is that of one of the answers, whichever was drawn
    longest = sorted(prompts, key=lambda prompt: max(map(len, prompt.sequences)))
    both = [runtime.scores(sign * state, longest).astype(np.float64) for sign in (1, -1)]
    logs = [s - np.log(np.exp(s).sum(1, keepdims=True)) for s in both]
    expected = np.abs(logs[0] - logs[1]) / 2
    errors = np.abs(expected - slopes[:, None]).min(axis=1)
    assert float((errors / (slopes + 1e-6)).max()) < 0.05


def test_the_leading_vectors_are_those_of_the_second_moments() -> None:
    gradients = np.random.default_rng(3).normal(size=(30, 50)) * np.linspace(1, 3, 50)
    values, vectors = leading_vectors(gradients.astype(np.float32), 8)
    expected = np.linalg.eigvalsh(gradients.T @ gradients / 30)[::-1]
    np.testing.assert_allclose(values[:8], expected[:8], rtol=1e-4)
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(8), atol=1e-4)
    with pytest.raises(ModelError, match="in only 30 directions, but a basis needs 31"):
        leading_vectors(gradients.astype(np.float32), 31)


def test_the_share_is_that_of_the_span() -> None:
    vectors = np.eye(6)[:3] * [[1.0], [5.0], [0.1]]
    gradients = np.array([[3, 0, 0, 4, 0, 0], [0, 0, 12, 0, 0, 5]], np.float32)
    share = share_of_gradients(Basis.quantize(ORIGIN, vectors), gradients)
    assert share == pytest.approx((9 + 144) / (25 + 169), rel=1e-6)


def test_random_texts_depend_on_their_index_alone(runtime: ModelRuntime) -> None:
    assert random_texts(runtime, 5, 3) == random_texts(runtime, 8)[3:]
    assert not any("[PAD]" in text or "<s>" in text for text in random_texts(runtime, 50))


def test_the_command_writes_a_basis_that_a_run_uses(
    settings: Settings, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samara.simulations.exports.basis_file.LEAST_SHARE", 0.1)
    file = tmp_path / "sst2.basis"
    lines = list(write_basis(config_of(settings), "random-tokens", file))
    basis = read_basis(str(file))
    assert f"sha256 {basis.reference.sha256}" in lines[1]
    assert basis.vectors.shape[0] == SIZES["BASIS_SIZE"]
    # E(∇·U·z)² = |∇|², as without a basis
    runtime = load_run(config_of(settings)).runtime
    prompts = prompts_around(runtime, load_task("sst2"), random_texts(runtime, SIZES["TEXTS"]))
    gradients = prediction_gradients(runtime, prompts).astype(np.float64)
    projected = gradients @ basis.as_float32().T
    assert np.square(projected).sum() == pytest.approx(np.square(gradients).sum(), rel=0.03)
    written = file.read_bytes()
    list(write_basis(config_of(settings), "random-tokens", file))
    assert file.read_bytes() == written
    folder = simulate(config_of(settings, adapter__basis=str(file), rounds=1))
    assert (folder / "result.json").exists()


def test_a_basis_beside_a_readout(
    settings: Settings, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samara.simulations.exports.basis_file.LEAST_SHARE", 0.1)
    file, config = tmp_path / "both.basis", config_of(settings, adapter__layers="readout,top:1")
    list(write_basis(config, "random-tokens", file))
    both = config.with_values({"adapter.basis": str(file), "adapter.label-bias": True})
    layout = load_run(both).runtime.layout
    assert [part.name for part in layout.parts] == ["basis", "readout", "label bias"]
    assert layout.parts[0].numbers == slice(0, SIZES["BASIS_SIZE"])
    alone = config_of(settings, adapter__layers="readout")
    with pytest.raises(ConfigError, match="a basis is for adapters inside the model"):
        list(write_basis(alone, "random-tokens", file))


@pytest.mark.usefixtures("small")
def test_layers_that_are_left_open_are_those_of_a_run_with_a_basis(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samara.simulations.exports.basis_file.LEAST_SHARE", 0.1)
    open_layers = {k: v for k, v in settings.items() if k != "adapter.layers"}
    scenario, file = tmp_path / "open.toml", tmp_path / "open.basis"
    scenario.write_text("", encoding="utf-8")
    basis(scenario, file, "random-tokens", [f"{key}={value}" for key, value in open_layers.items()])
    layout = load_run(config_of(open_layers, adapter__basis=str(file))).runtime.layout
    assert layout.adapter_hash.hex() == read_basis(str(file)).origin.adapter_hash


def test_a_basis_that_catches_little_is_not_written(
    settings: Settings, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samara.simulations.exports.basis_file.LEAST_SHARE", 1.1)
    with pytest.raises(ModelError, match=r"isotropic directions are better\. No file was written"):
        list(write_basis(config_of(settings), "random-tokens", tmp_path / "no.basis"))
    assert not (tmp_path / "no.basis").exists()


def test_texts_may_come_from_a_file(
    settings: Settings, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samara.simulations.exports.basis_file.LEAST_SHARE", 0.1)
    lines = tmp_path / "lines.txt"
    words = [
        "film",
        "day",
        "meal",
        "walk",
        "good",
        "bad",
        "fine",
        "cold",
        "it",
        "was",
        "the",
        "very",
        "not",
    ]
    lines.write_text("\n".join(f"{a} {b} {c}" for a in words for b in words for c in words[:2]))
    list(write_basis(config_of(settings), str(lines), tmp_path / "own.basis"))
    assert read_basis(str(tmp_path / "own.basis")).origin.source == "file"
    lines.write_text("one line")
    with pytest.raises(DataError, match="has 1 texts, but a basis needs at least 14"):
        list(write_basis(config_of(settings), str(lines), tmp_path / "own.basis"))


def test_a_basis_of_another_model_or_adapter_is_refused(
    settings: Settings, runtime: ModelRuntime, tmp_path: Path
) -> None:
    layout, file = runtime.layout, tmp_path / "other.basis"
    right = replace(ORIGIN, model_id=runtime.model_id.hex(), adapter_hash=layout.adapter_hash.hex())
    vectors = np.random.default_rng(0).normal(size=(3, layout.element_count))
    for origin, columns, message in (
        (replace(right, model_id="00" * 32), vectors, "was made for model 000000000000"),
        (replace(right, adapter_hash="00" * 32), vectors, "was made for adapter 000000000000"),
        (right, vectors[:, 1:], r"is for 511 elements, but the adapter has 512"),
    ):
        file.write_bytes(Basis.quantize(origin, columns).encoded)
        with pytest.raises(ModelError, match=message):
            load_run(config_of(settings, adapter__basis=str(file)))
