"""The damping of a readout: its measurement, its files, and its name in the layout."""

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from federations import Settings, config_of, loaded
from sklearn.covariance import ledoit_wolf

from samara.shared.errors import ConfigError, DataError, ModelError
from samara.shared.model import damping
from samara.shared.model.damping import measure_damping, shrunk_covariance
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.layout import DampingRecipe, Layout
from samara.shared.storage.files import cache_folder, write_once
from samara.simulations.exports.damping_file import write_damping

ModelFolder = Callable[[str], Path]
pytestmark = pytest.mark.usefixtures("empty_cache")


def test_another_damping_has_features_of_its_own(readout: Settings) -> None:
    run = loaded(readout)
    prompts = run.data.share_of(0, 3).tokenized(Split.TRAIN).prompts
    damped = run.runtime.features(prompts)
    plain = run.under(config_of(readout, adapter__damping="none")).runtime.features(prompts)
    assert not np.allclose(damped, plain)
    again = run.copy_sharing_weights().runtime
    np.testing.assert_array_equal(again.features(prompts), damped)
    assert again.passes == 0


def test_the_layout_names_the_damping(readout: Settings, tmp_path: Path) -> None:
    layouts = {
        kind: loaded(readout, adapter__damping=kind).runtime.layout
        for kind in ("none", "random-tokens")
    }
    assert layouts["none"].damping == DampingRecipe()
    assert layouts["random-tokens"].damping == DampingRecipe("random-tokens", 256, 0, 1)
    assert layouts["none"].hash != layouts["random-tokens"].hash
    for layout in layouts.values():
        assert Layout.from_json(layout.to_json()) == layout
    inside = loaded(readout, adapter__layers="top:1").runtime.layout
    assert inside.damping is None
    assert "damping" not in json.loads(inside.to_json())


def test_random_tokens_are_measured_once_per_machine(
    readout: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = loaded(readout).runtime
    prompts = loaded(readout).data.share_of(0, 3).tokenized(Split.TRAIN).prompts
    features = first.features(prompts)
    (file,) = cache_folder("damping").iterdir()
    monkeypatch.setattr(damping, "measure_damping", None)
    np.testing.assert_array_equal(loaded(readout).runtime.features(prompts), features)
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ConfigError, match="cannot be read as a damping"):
        loaded(readout).runtime.features(prompts)


def test_threads_may_write_the_same_damping(tmp_path: Path) -> None:
    file = tmp_path / "damping"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: write_once(file, bytes(100_000)), range(40)))
    assert file.read_bytes() == bytes(100_000)
    assert [path.name for path in tmp_path.iterdir()] == ["damping"]


def test_damping_evens_out_and_has_mean_square_one() -> None:
    rng = np.random.default_rng(0)
    numbers = (rng.normal(size=(400, 8)) * np.geomspace(10, 0.1, 8)).astype(np.float32)
    made, rank = measure_damping(numbers)
    features = made.apply(torch.from_numpy(numbers)).numpy()
    assert np.mean(np.square(features).sum(axis=1)) == pytest.approx(1, rel=1e-4)
    deviations = features.std(axis=0)
    assert 3 < deviations.max() / deviations.min() < 25  # about the root of 100
    assert 1 < rank < 2
    np.testing.assert_allclose(made.root, made.root.T, atol=1e-6)
    with pytest.raises(ModelError, match="all equal"):
        measure_damping(np.ones((4, 8), np.float32))


@pytest.mark.parametrize(("count", "size"), [(40, 8), (5, 32), (2, 3)])
def test_the_covariance_is_that_of_ledoit_and_wolf(count: int, size: int) -> None:
    numbers = np.random.default_rng(0).normal(3, np.geomspace(5, 0.1, size), (count, size))
    shrunk = shrunk_covariance(numbers - numbers.mean(axis=0))
    np.testing.assert_allclose(shrunk, ledoit_wolf(numbers)[0], rtol=1e-12, atol=1e-12)


def test_a_covariance_that_is_the_identity_already_stays() -> None:
    np.testing.assert_array_equal(shrunk_covariance(np.array([[1.0], [-1.0]])), [[1.0]])


def test_a_damping_can_be_measured_on_texts(
    readout: Settings, tmp_path: Path, data_file: Path
) -> None:
    config = config_of(readout)
    for texts in (None, data_file):
        file = tmp_path / "damping" / "d.safetensors"
        rank = write_damping(config, texts, 40, file)
        assert 1 <= rank <= 32
        runtime, source = loaded(readout, adapter__damping=str(file))
        recipe = runtime.layout.damping
        assert recipe is not None
        assert recipe.to_json() == {
            "source": "file",
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
        assert np.isfinite(
            runtime.features(source.share_of(0, 3).tokenized(Split.TRAIN).prompts)
        ).all()
    with pytest.raises(DataError, match="cannot be read as text"):
        write_damping(config, tmp_path / "nothing", 0, file)


def test_a_damping_of_another_model_is_refused(
    readout: Settings, tmp_path: Path, model_folder: ModelFolder
) -> None:
    file = tmp_path / "d.safetensors"
    write_damping(config_of(readout), None, 8, file)
    other = readout | {"model.path": str(model_folder("masked")), "adapter.damping": str(file)}
    runtime, source = loaded(other)
    with pytest.raises(ConfigError, match="this damping belongs to another model"):
        runtime.features(source.share_of(0, 3).tokenized(Split.TRAIN).prompts)
