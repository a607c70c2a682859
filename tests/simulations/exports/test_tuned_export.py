"""PEFT and transformers load the folder of a tuned model, and give the same logits."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from tuning import Settings, small, tuning_of
from typer.testing import CliRunner

from samara.client.forward.body import PerturbedBody
from samara.client.forward.resident import ResidentForward
from samara.client.spaces.space import FlatSpace
from samara.client.tuning.finished_tuning import FinishedTuning
from samara.client.tuning.run import tune
from samara.command import app
from samara.shared.errors import ConfigError, ModelError, SamaraError
from samara.shared.model.loading import load_base_model
from samara.shared.model.lora_fa import empty_adapter
from samara.shared.model.scorers import scorer_for
from samara.simulations.exports.quick_look import tuned_look
from samara.simulations.exports.tuned_export import export_tuned

peft = pytest.importorskip("peft", reason="needs peft")

ModelFolder = Callable[[str], Path]
IDS = torch.tensor([[7, 9, 11, 13, 15, 8]])


@pytest.fixture
def settings(model_folder: ModelFolder, data_file: Path, tmp_path: Path) -> Settings:
    return small(model_folder("causal"), data_file, tmp_path / "run")


def our_logits(folder: Path) -> Any:
    run = FinishedTuning.at(folder)
    setup = run.load()
    space = run.restore(setup)
    network = setup.base.network
    with torch.inference_mode():
        if not isinstance(space, FlatSpace):
            return network(input_ids=IDS).logits
        theta = space.values(0, space.size)
        with space.computing_with(theta) as adapters, space.adapter.using(adapters):
            return network(input_ids=IDS).logits


def loaded_logits(folder: Path, base: Path) -> Any:
    from transformers import AutoModelForCausalLM

    whole = (folder / "config.json").exists()
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        model: Any = AutoModelForCausalLM.from_pretrained(folder if whole else base)
        if not whole:
            model = peft.PeftModel.from_pretrained(model, str(folder))
        return model.eval()(input_ids=IDS).logits


@pytest.mark.parametrize(
    ("method", "space"),
    [
        ("prge", "lora-fa"),
        ("mezo", "lora"),
        ("mezo", "dora"),
        ("mezo", "vera"),
        ("mezo", "prefix"),
        ("mezo-adam", "full"),
        ("mezo", "head"),
        ("fo-adam", "head"),
        ("fo-adam", "lora-fa"),
        ("fo-adam", "dora"),
        ("zero-offload", "linear"),
    ],
)
def test_other_software_gives_the_logits_of_a_tuned_model(
    method: str, space: str, settings: Settings, tmp_path: Path
) -> None:
    folder = tune(tuning_of(settings, optimizer=method, space=space, learning_rate=0.05))
    out = tmp_path / "exported"
    assert export_tuned(folder, out) == {}
    ours, base = our_logits(folder), Path(settings["model.path"])
    torch.testing.assert_close(loaded_logits(out, base), ours, rtol=1e-4, atol=1e-4)
    plain = load_base_model(str(base)).network(input_ids=IDS).logits
    changed = json.loads((folder / "result.json").read_text())["best_step"] > 0
    assert changed == bool((ours - plain).abs().max() > 1e-3) or space == "prefix"
    assert f"samara tune, optimizer {method}" in (out / "README.md").read_text()
    with pytest.raises(SamaraError, match="is not an empty folder"):
        export_tuned(folder, out)


def test_a_prefix_that_a_network_makes_is_exported_as_a_prefix(
    settings: Settings, tmp_path: Path
) -> None:
    network = {"prefix_width": 8, "prefix_start": "random"}
    folder = tune(tuning_of(settings, optimizer="fo-adam", space="prefix", **network))
    export_tuned(folder, tmp_path / "exported")
    ours = our_logits(folder)
    loaded = loaded_logits(tmp_path / "exported", Path(settings["model.path"]))
    torch.testing.assert_close(loaded, ours, rtol=1e-4, atol=1e-4)


def test_a_prefix_of_a_masked_lm_answers_and_is_not_exported(
    settings: Settings, model_folder: ModelFolder, tmp_path: Path
) -> None:
    masked = {"model.path": str(model_folder("masked")), "learning-rate": 0.05}
    folder = tune(tuning_of(settings | masked, optimizer="fo-adam", space="prefix"))
    _, answers = tuned_look(folder, "a fine film")
    assert not np.allclose(answers["base"], answers["tuned"])
    with pytest.raises(ModelError, match="PEFT supports prefixes only for causal language models"):
        export_tuned(folder, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_answers_are_those_of_the_base_and_of_the_exported_model(
    settings: Settings, tmp_path: Path
) -> None:
    folder = tune(tuning_of(settings, optimizer="fo-adam", space="full", learning_rate=0.05))
    labels, answers = tuned_look(folder, "a fine film")
    export_tuned(folder, tmp_path / "exported")
    task = FinishedTuning.at(folder).load().task
    for name, model in (("base", settings["model.path"]), ("tuned", tmp_path / "exported")):
        base = load_base_model(str(model))
        body = PerturbedBody(base, 0)
        scorer = scorer_for(base, task, settings["model.max-length"], body)
        adapter, no_adapters = empty_adapter()
        prompt = scorer.prompt("a fine film", (), None)
        scores = ResidentForward(adapter, scorer, body).scores(no_adapters, [prompt])[0, 0]
        np.testing.assert_allclose(answers[name], softmax(scores), rtol=1e-4)
    assert len(labels) == 2


def test_a_readout_answers_and_is_exported(settings: Settings, tmp_path: Path) -> None:
    readout = {"adapter.layers": "readout", "adapter.damping": "none", "learning-rate": 1.0}
    folder = tune(tuning_of(settings | readout, optimizer="fo-adam"))
    _, answers = tuned_look(folder, "a fine film")
    assert not np.allclose(answers["base"], answers["tuned"])
    export_tuned(folder, tmp_path / "exported")
    assert (tmp_path / "exported" / "readout.safetensors").is_file()


def test_commands_take_the_folder_of_tune(settings: Settings, tmp_path: Path) -> None:
    folder = tune(tuning_of(settings))
    done = CliRunner().invoke(app, ["adapter", "apply", str(folder), "a fine film"])
    assert done.exit_code == 0, done.output
    assert "base" in done.output
    assert "tuned" in done.output
    out = tmp_path / "exported"
    done = CliRunner().invoke(app, ["adapter", "export", str(folder), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert (out / "adapter_model.safetensors").is_file()
    done = CliRunner().invoke(app, ["adapter", "apply", str(folder), "x", "--client", "1"])
    assert isinstance(done.exception, ConfigError)
    assert "has no clients" in str(done.exception)


def test_what_is_not_what_the_run_left_is_refused(settings: Settings, tmp_path: Path) -> None:
    folder = tune(tuning_of(settings, optimizer="zero-shot"))
    with pytest.raises(ConfigError, match="trains nothing"):
        FinishedTuning.at(folder)
    folder = tune(tuning_of(settings, out=str(tmp_path / "other")))
    file = folder / "result.json"
    result = json.loads(file.read_text())
    file.write_text(json.dumps(result | {"digest": 64 * "0"}))
    with pytest.raises(ModelError, match="do not have the state in which the run ended"):
        export_tuned(folder, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()
    file.write_text(json.dumps({key: result[key] for key in result if key != "model_path"}))
    with pytest.raises(ConfigError, match="does not name the path"):
        FinishedTuning.at(folder)
    compressed = result["config"] | {"stream-compression": "float8"}
    file.write_text(json.dumps(result | {"config": compressed}))
    with pytest.raises(ConfigError, match="float8"):
        FinishedTuning.at(folder)
