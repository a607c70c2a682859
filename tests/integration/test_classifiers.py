"""A classifier in place of label words: without a prompt, and begun by linear probing."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tuning import Settings, small, tuned, tuning_of

from client.tuning.classifier import probe_weights
from client.tuning.finished_tuning import FinishedTuning
from client.tuning.run import tune
from client.tuning.tuning_setup import TuningSetup
from shared.errors import ConfigError, TaskError

ModelFolder = Callable[[str], Path]


@pytest.fixture
def settings(model_folder: ModelFolder, data_file: Path, tmp_path: Path) -> Settings:
    own = {"method": "mezo", "space": "full"}
    return small(model_folder("causal"), data_file, tmp_path / "run") | own


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
    classifier: str, family: str, method: str, settings: Settings, model_folder: ModelFolder
) -> None:
    changes = {"model__path": str(model_folder(family)), "classifier": classifier}
    result = tuned(tuning_of(settings, method=method, **changes))
    assert len({point["loss"] for point in result["curve"]}) == 3
    begun = result["zero_shot"]["validation"]
    assert begun["loss"] == result["curve"][0]["loss"]
    if classifier == "linear-probe":
        assert begun["accuracy"] > 0.8
    else:
        assert abs(begun["loss"] - np.log(2)) < 1


@pytest.mark.parametrize("classifier", ["new", "linear-probe"])
def test_a_run_with_a_classifier_goes_on_to_the_same_result(
    classifier: str, settings: Settings, tmp_path: Path
) -> None:
    whole = tuned(tuning_of(settings, classifier=classifier, out=str(tmp_path / "whole")))

    def stop(done: int, steps: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    config = tuning_of(settings, classifier=classifier)
    with pytest.raises(KeyboardInterrupt):
        tune(config, stop)
    assert tuned(config) == whole
    with pytest.raises(ConfigError, match="a classifier of its own, which no folder"):
        FinishedTuning.at(Path(config.out))


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
    with pytest.raises(TaskError, match="a classifier needs labels that are the same"):
        TuningSetup(config)
