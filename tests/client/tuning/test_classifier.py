"""A classifier in place of label words: without a prompt, and initialized by linear probing."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer
from tuning import Settings, lasting, small, tuned, tuning_of

from samara.client.tuning.classifier import CLASSIFIER_FILE, probe_weights
from samara.client.tuning.finished_tuning import FinishedTuning
from samara.client.tuning.run import tune
from samara.client.tuning.tuning_setup import TuningSetup
from samara.shared.errors import TaskError, TrainingError
from samara.simulations.exports.quick_look import tuned_look
from samara.simulations.exports.tuned_export import export_tuned

ModelFolder = Callable[[str], Path]
OWN = {"optimizer": "mezo", "space": "full", "tested-state": "last"}


Trained = Callable[[str, str, str], Path]
"""The folder of a run, by classifier, family and method; each is made once."""


@pytest.fixture
def settings(model_folder: ModelFolder, data_file: Path, tmp_path: Path) -> Settings:
    return small(model_folder("causal"), data_file, tmp_path / "run") | OWN


@pytest.fixture(scope="module")
def trained(
    model_folder: ModelFolder, data_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    @cache
    def folder_of(classifier: str, family: str, method: str) -> Path:
        out = tmp_path_factory.mktemp("runs") / "run"
        own = OWN | {"classifier": classifier, "optimizer": method}
        return tune(tuning_of(small(model_folder(family), data_file, out) | own))

    return folder_of


@pytest.mark.parametrize(
    ("classifier", "family", "method"),
    [
        ("new", "masked", "mezo"),
        ("new", "causal", "fo-adam"),
        ("linear-probe", "causal", "mezo"),
        ("linear-probe", "encoder", "mezo"),
        ("linear-probe", "masked", "fo-adam"),
    ],
)
def test_a_classifier_is_trained_with_all_parameters(
    classifier: str, family: str, method: str, trained: Trained
) -> None:
    result = lasting(trained(classifier, family, method))
    assert len({point["loss"] for point in result["curve"]}) == 3
    begun = result["zero_shot"]["validation"]
    assert begun["loss"] == result["curve"][0]["loss"]
    if classifier == "linear-probe":
        assert begun["accuracy"] > 0.8
    else:
        assert abs(begun["loss"] - np.log(2)) < 1


@pytest.mark.parametrize(("classifier", "method"), [("new", "fo-adam"), ("linear-probe", "mezo")])
def test_a_run_with_a_classifier_goes_on_to_the_same_result(
    classifier: str, method: str, settings: Settings, trained: Trained
) -> None:
    def stop(done: int, steps: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    config = tuning_of(settings, classifier=classifier, optimizer=method)
    with pytest.raises(KeyboardInterrupt):
        tune(config, stop)
    assert tuned(config) == lasting(trained(classifier, "causal", method))


@pytest.mark.parametrize(
    ("classifier", "family", "method"),
    [("new", "causal", "fo-adam"), ("new", "masked", "mezo"), ("linear-probe", "encoder", "mezo")],
)
def test_an_exported_classifier_gives_the_scores_of_the_run(
    classifier: str, family: str, method: str, trained: Trained, tmp_path: Path
) -> None:
    """Transformers and numpy suffice; the exported model has no layer of Samara."""
    folder, out = trained(classifier, family, method), tmp_path / "exported"
    assert export_tuned(folder, out) == {}
    _, answers = tuned_look(folder, "a fine film")
    assert not np.allclose(answers["base"], answers["tuned"])
    tensors = load_file(out / "classifier.safetensors")
    scores = tensors["weight"] @ representation(out, family) + tensors["bias"]
    np.testing.assert_allclose(answers["tuned"], softmax(scores), rtol=1e-3)
    card = (out / "README.md").read_text()
    assert "`weight @ h + bias`, of `classifier.safetensors`" in card
    assert "question after the text" not in card


def representation(folder: Path, family: str) -> NDArray[np.float32]:
    """The representation of a text without a prompt, computed without Samara."""
    loaders = {"causal": AutoModelForCausalLM, "masked": AutoModelForMaskedLM, "encoder": AutoModel}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = loaders[family].from_pretrained(folder)
    ids = tokenizer("a fine film").input_ids
    if family == "causal":
        ids = [tokenizer.bos_token_id, *ids]
    with torch.inference_mode():
        hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0].numpy()
    if family == "encoder":
        mean = hidden.mean(axis=0)
        return mean / np.linalg.norm(mean)
    return hidden[-1 if family == "causal" else 0]


def test_a_run_without_its_classifier_is_not_rebuilt(trained: Trained, tmp_path: Path) -> None:
    folder = Path(copytree(trained("new", "causal", "fo-adam"), tmp_path / "copy"))
    (folder / CLASSIFIER_FILE).unlink()
    with pytest.raises(TrainingError, match=r"classifier\.safetensors: is damaged or missing"):
        FinishedTuning.at(folder).load()


@pytest.mark.parametrize("family", ["causal", "masked", "encoder"])
def test_without_a_prompt_the_text_alone_is_read(
    family: str, settings: Settings, model_folder: ModelFolder
) -> None:
    path = str(model_folder(family))
    config = tuning_of(settings, model__path=path, classifier="new").complete(1)
    setup = TuningSetup(config)
    split = setup.splits["train"]
    for example, prompt in zip(split.examples[:4], split.prompts, strict=False):
        ids = setup.base.tokenizer(example.text, add_special_tokens=family != "causal").input_ids
        if family == "causal":
            ids = [setup.base.tokenizer.bos_token_id, *ids]
        places = {"causal": (len(ids) - 1,), "masked": (0,), "encoder": ()}[family]
        assert prompt.sequences == (tuple(ids),)
        assert prompt.supervised == (places,)


@pytest.mark.parametrize("labels", [(0, 1), (0, 1, 2), (0, 2, 3), (1, 2)])
def test_a_layer_gives_the_scores_of_the_probe(labels: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    features, right = random.normal(2, 3, (60, 5)), random.choice(labels, 60)
    probe = make_pipeline(StandardScaler(), LogisticRegression()).fit(features, right)
    matrix, bias = probe_weights(probe, 4)
    assert matrix.shape == (4, 5)
    scores = (features @ matrix.T + bias)[:, list(labels)]
    np.testing.assert_allclose(
        log_softmax(scores, axis=1), probe.predict_log_proba(features), atol=1e-5
    )
    untrained = [label for label in range(4) if label not in labels]
    assert (bias[untrained] == bias.min()).all()
    assert not matrix[untrained].any()


def test_a_classifier_is_for_classifications(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"q": "the film", "a": ["good"]}\n' * 20)
    task = 'kind = "generation"\nname = "qa"\ntext = "{q} was {answer}"\nlabel = "a"\n'
    (tmp_path / "qa.toml").write_text(task)
    places = {"task": str(tmp_path / "qa.toml"), "data__path": str(tmp_path / "rows.jsonl")}
    config = tuning_of(settings, classifier="new", **places).complete(1)
    with pytest.raises(TaskError, match="a classifier needs the same labels for all rows"):
        TuningSetup(config)
