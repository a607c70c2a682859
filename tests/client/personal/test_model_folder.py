"""A live client's model, exported for other software, computes the same results there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import CLIENT, IDS, logits_of, run_export, take_part
from federations import Settings
from peft_logits import theirs
from residents import device_settings, resident
from safetensors.torch import load_file
from tiny_models import ARCHITECTURES, save_tokenizer

from samara.client.personal.model_folder import TrainedModel, write_new_folder
from samara.client.personal.readout_file import READOUT_FILE
from samara.client.questions.client_model import ClientModel
from samara.client.training.model_runtime import ModelRuntime
from samara.shared.errors import ModelError, SamaraError, TrainerError
from samara.shared.model.loading import load_base_model
from samara.shared.model.lora_fa import inject
from samara.shared.model.perturbations import Perturbations
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.settings.config import RunConfig
from samara.shared.settings.sections import AdapterSettings

ModelFolder = Callable[[str], Path]


def our_logits(folder: Path, numbers: np.ndarray, settings: AdapterSettings) -> Any:
    base = load_base_model(str(folder))
    adapter = inject(base, settings, 2)
    with torch.inference_mode():
        plain = base.network(input_ids=IDS)[0]
        with adapter.using(Perturbations.from_arrays(adapter.layout, numbers)):
            return plain, base.network(input_ids=IDS)[0]


@pytest.mark.parametrize("name", [*ARCHITECTURES, "causal", "masked", "encoder"])
def test_a_merged_model_gives_the_same_logits(
    name: str, tmp_path: Path, model_folder: ModelFolder
) -> None:
    if name in ARCHITECTURES:
        family, build, _ = ARCHITECTURES[name]
        torch.manual_seed(0)
        folder = tmp_path / "model"
        folder.mkdir()
        build(save_tokenizer(folder, family)).save_pretrained(folder)
    else:
        folder = model_folder(name)
    settings = AdapterSettings(layers="top:2", rank=3, alpha=5.0)
    base = load_base_model(str(folder))
    layout = inject(base, settings, 2).layout
    numbers = np.random.default_rng(0).normal(0, 0.5, layout.size).astype(np.float32)
    config = RunConfig.of({"model.path": str(folder), "task": "sst2"}, "test")
    TrainedModel(config, layout, base.model_id, numbers, "A model.").write_merged(tmp_path / "out")
    plain, expected = our_logits(folder, numbers, settings)
    assert (expected - plain).abs().max() > 1e-3
    torch.testing.assert_close(logits_of(tmp_path / "out"), expected, rtol=0, atol=2e-5)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("h")


def test_the_personal_model_of_a_live_client_computes_the_same_elsewhere(
    settings: Settings, home: Path, tmp_path: Path
) -> None:
    runtime = take_part(settings, home, tmp_path / "run")
    config = device_settings(settings, CLIENT, home).config
    model = ClientModel.read(home, config, CLIENT)
    assert (model.session.position.round, model.private_rounds) == (3, 2)
    [ledger] = home.glob("runs/*/clients/*/personal.ledger")
    *_, last = verify_ledger(ledger, model.run.layout)
    np.testing.assert_array_equal(model.private, last.state)
    numbers = runtime.weight_map.weights(model.session.state + last.state)
    np.testing.assert_array_equal(model.trained.numbers, numbers)
    base = Path(settings["model.path"])
    plain, expected = our_logits(base, numbers, runtime.config.adapter)
    assert (expected - plain).abs().max() > 1e-4

    shown = run_export(home, tmp_path / "merged", "--form", "merged")
    assert shown.exit_code == 0, shown.output
    assert "3 of run" in shown.output
    assert "2 private rounds" in shown.output
    torch.testing.assert_close(logits_of(tmp_path / "merged"), expected, rtol=0, atol=2e-5)
    card = (tmp_path / "merged" / "README.md").read_text()
    assert f"run {model.run.run_id.hex()}" in card
    assert "`terrible`, `great`" in card
    assert 'AutoModelForCausalLM.from_pretrained(folder, dtype="float32")' in card

    assert run_export(home, tmp_path / "peft").exit_code == 0
    found = theirs(base, tmp_path / "peft")
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)

    again = run_export(home, tmp_path / "peft")
    assert isinstance(again.exception, SamaraError)
    assert "is not an empty folder" in str(again.exception)
    assert not list(tmp_path.glob("*.unfinished"))


@pytest.mark.parametrize("layers", ["readout", "readout:2/3"])
def test_a_readout_is_exported_with_its_label_bias(
    layers: str, settings: Settings, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("r")
    changes = {"adapter.layers": layers, "adapter.label-bias": True, "method": "readout"}
    runtime = take_part(settings | changes, home, tmp_path / "run")
    model = ClientModel.read(home, device_settings(settings, CLIENT, home).config, CLIENT)
    assert model.private_rounds == 1
    assert run_export(home, tmp_path / "out", "--form", "merged").exit_code == 0
    tensors = load_file(tmp_path / "out" / READOUT_FILE)
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["num_hidden_layers"] == len(runtime.base.blocks)
    data = resident(settings, CLIENT, tmp_path_factory.mktemp("d")).data
    prompts = [runtime.tokenize(example) for example in data.in_split(Split.TEST)[:5]]
    state = model.session.state + model.private
    expected = runtime.scores(state, prompts)
    base = runtime.base_scores(prompts)
    assert np.abs(expected - base).max() > 1e-3
    hidden = representations_of(runtime, prompts)
    found = base + hidden @ tensors["weight"].numpy().T + tensors["bias"].numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def representations_of(runtime: ModelRuntime, prompts: Any) -> np.ndarray:
    """The representations of prompts under the base model, without damping."""
    from samara.client.forward.body import PerturbedBody
    from samara.client.forward.readout import make_base_engine, run_base
    from samara.shared.model.scorers import scorer_for
    from samara.shared.tasks.catalog import load_task

    base = load_base_model(runtime.config.model.path, depth=runtime.config.adapter.depth)
    task = load_task(runtime.config.task)
    with torch.no_grad():
        scorer = scorer_for(base, task, runtime.config.model.max_length, PerturbedBody(base, 0))
    return run_base(make_base_engine(base, scorer, False), prompts, 16)[:, scorer.labels :]


def test_what_is_missing_or_another_is_named(
    settings: Settings, tmp_path: Path, model_folder: ModelFolder
) -> None:
    empty = device_settings(settings, CLIENT, tmp_path)
    with pytest.raises(TrainerError, match="taken part in no run yet"):
        ClientModel.read(tmp_path, empty.config, CLIENT)
    shown = run_export(tmp_path, tmp_path / "out")
    assert "no client was started here" in str(shown.exception)
    adapted = AdapterSettings(layers="top:2")
    layout = inject(load_base_model(settings["model.path"]), adapted, 2).layout
    config = RunConfig.of({"model.path": str(model_folder("masked")), "task": "sst2"}, "test")
    other = TrainedModel(config, layout, bytes(32), np.zeros(layout.size, np.float32), "x")
    for write in (other.write_peft, other.write_merged):
        with pytest.raises(ModelError, match="is not the base model of the run"):
            write_new_folder(tmp_path / "out", write)
    assert not (tmp_path / "out").exists()
