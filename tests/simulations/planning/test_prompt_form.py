"""A simulation of an instruct model chooses its prompt form, and a run keeps its first choice."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from federations import Settings, config_of
from scipy.optimize import minimize_scalar
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from samara.client.training.client_data import example_reader
from samara.shared.errors import TaskError
from samara.shared.model.loading import BaseModel, load_base_model
from samara.shared.model.prefix_cache import Prefix, read_prefix
from samara.shared.model.prompt_frame import frame_of
from samara.shared.results.result import RunResult
from samara.shared.tasks.catalog import load_task, task_of
from samara.shared.tasks.kinds import ClassificationTask
from samara.shared.tasks.rows import Example
from samara.simulations import simulate as simulation
from samara.simulations.planning.prompt_form import choose_form, held_out_scores
from samara.simulations.simulate import simulate

TEMPLATE = (
    "{% for m in messages %}the {{ m['role'] }} was {{ m['content'] }} .\n{% endfor %}"
    "{% if add_generation_prompt %}the assistant was {% endif %}"
)


@pytest.fixture
def instruct(settings: Settings, model_folder: Callable[[str], Path], tmp_path: Path) -> Settings:
    """The settings of a small run of a model with a chat template."""
    folder = shutil.copytree(model_folder("causal"), tmp_path / "instruct")
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": TEMPLATE}))
    return settings | {"model.path": str(folder), "rounds": 1}


def asked_of(settings: Settings) -> tuple[BaseModel, list[Example], dict[str, list[str]]]:
    """Return the model, the compared rows, and the rows' prompts in both forms."""
    config, task = config_of(settings), load_task("sst2")
    examples = example_reader(task, config.data)(config.data.clients)
    rows = [example for example in examples if example.split == "train"]
    rows = [rows[i] for i in np.linspace(0, len(rows) - 1, min(64, len(rows))).astype(int)]
    prompts = {
        "auto": [f"<s> {row.text} It was" for row in rows],
        "chat": [f"the user was {row.text} .\nthe assistant was It was" for row in rows],
    }
    return load_base_model(config.model.path), rows, prompts


def losses_of(settings: Settings) -> dict[str, float]:
    """The losses of both forms by plain transformers, with the label bias that fits them best."""
    base, rows, prompts = asked_of(settings)
    labels, found = np.array([row.label for row in rows]), {}
    for form, texts in prompts.items():
        scores = []
        for text in texts:
            ids = base.tokenizer(text)["input_ids"]
            with torch.no_grad():
                likely = base.network(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            words = [base.tokenizer(word)["input_ids"] for word in ("terrible", "great")]
            scores.append([float(likely[word].mean()) for word in words])
        found[form] = profiled(np.array(scores), labels)
    return found


def profiled(scores: np.ndarray, labels: np.ndarray) -> float:
    def loss(shift: float) -> float:
        shifted = scores + np.array([-shift, shift])
        right = shifted[np.arange(len(labels)), labels]
        rows = np.logaddexp(*shifted.T) - right
        return float(rows.mean() + shift**2 / len(labels))

    return float(minimize_scalar(loss, bounds=(-20, 20), method="bounded").fun)


def test_the_form_with_the_lower_loss_is_chosen_and_said(instruct: Settings) -> None:
    losses = losses_of(instruct)
    assert abs(losses["auto"] - losses["chat"]) > 0.001
    best = min(losses, key=lambda form: losses[form])
    folder = simulate(config_of(instruct))
    result = RunResult.read(folder)
    assert result.config["form"] == best
    said = re.findall(
        r"(auto|chat) (\d\.\d{3}) \(\d+% right, AUC 0\.\d{3}\)", result.automatic["form"]
    )
    assert said == [(form, f"{loss:.3f}") for form, loss in losses.items()]
    assert simulate(config_of(instruct)) == folder
    assert RunResult.read(folder).run_id == result.run_id


def test_of_a_readout_the_form_whose_representations_tell_labels_apart_is_chosen(
    instruct: Settings,
) -> None:
    config = config_of(instruct, adapter__layers="readout")
    base, rows, prompts = asked_of(instruct)
    labels = np.array([row.label for row in rows])
    losses = {}
    for form, texts in prompts.items():
        features = []
        for text in texts:
            ids = base.tokenizer(text)["input_ids"]
            with torch.no_grad():
                out = base.network(torch.tensor([ids]), output_hidden_states=True)
            features.append(out.hidden_states[-1][0, -1].numpy())
        losses[form] = held_out_loss(np.array(features), labels)
    assert abs(losses["auto"] - losses["chat"]) > 0.002
    chosen = choose_form(config)
    assert chosen is not None
    assert chosen.form == min(losses, key=lambda form: losses[form])
    said = dict(re.findall(r"(auto|chat) (\d\.\d{3}) \(", chosen.reason))
    assert {form: float(loss) for form, loss in said.items()} == pytest.approx(losses, abs=0.002)


def held_out_loss(features: np.ndarray, labels: np.ndarray) -> float:
    """The lowest loss over the penalties, by scikit-learn's own cross-validation."""
    folds = PredefinedSplit(np.random.default_rng(0).permutation(len(labels)) % 5)
    losses = []
    for strength in (1e-4, 1e-3, 1e-2, 1e-1):
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=1_000))
        known = cross_val_predict(probe, features, labels, cv=folds, method="predict_proba")
        smoothed = known + 1 / known.size
        losses.append(log_loss(labels, smoothed / smoothed.sum(axis=1, keepdims=True)))
    return float(min(losses))


def test_the_first_tokens_of_a_chat_are_read_once(
    instruct: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(instruct["model.path"], "tokenizer_config.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": "<s>" + TEMPLATE}))
    base = load_base_model(instruct["model.path"])
    task = load_task("sst2").model_copy(update={"form": "chat"})
    assert isinstance(task, ClassificationTask)
    first = frame_of(base, task).prefix(base)
    assert first
    read = []

    def counted(base: BaseModel, prefix: tuple[int, ...]) -> Prefix | None:
        read.append(prefix)
        return read_prefix(base, prefix)

    monkeypatch.setattr("samara.client.forward.body.read_prefix", counted)
    assert choose_form(config_of(instruct)) is not None
    assert read.count(first) == 1


def test_a_label_that_a_fold_lacks_stays_possible() -> None:
    features = np.eye(10, dtype=np.float32)
    labels = np.array([0] * 9 + [2])
    scores = held_out_scores(features, labels, 3)
    assert scores.shape == (10, 3)
    assert np.isfinite(scores).all()
    assert (scores[:9].argmax(axis=1) == 0).all()


def test_the_forms_are_asked_by_the_run(instruct: Settings, tmp_path: Path) -> None:
    losses = []
    for form in ("plain", "chat"):
        config = config_of(instruct, form=form, out=str(tmp_path / form))
        assert choose_form(config) is None
        result = RunResult.read(simulate(config))
        assert result.config["form"] == form
        assert "form" not in result.automatic
        losses.append(result.evaluations[0].columns["global"].loss)
    assert losses[0] != losses[1]


def test_a_run_from_before_there_were_forms_keeps_its_prompts(
    instruct: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(simulation, "choose_form", lambda config: None)
        folder = simulate(config_of(instruct))
    assert "form" not in json.loads((folder / "settings.json").read_text())
    run_id = RunResult.read(folder).run_id
    (folder / "result.json").unlink()
    assert simulate(config_of(instruct)) == folder
    result = RunResult.read(folder)
    assert (result.run_id, result.config["form"]) == (run_id, "auto")


def test_without_a_template_nothing_is_chosen(settings: Settings) -> None:
    assert choose_form(config_of(settings)) is None


def test_a_task_that_says_its_form_is_not_asked_otherwise(
    instruct: Settings, tmp_path: Path
) -> None:
    shipped = load_task("sst2")
    assert isinstance(shipped, ClassificationTask)
    file = tmp_path / "task.toml"
    file.write_text(
        'form = "chat"\nname = "own"\ntext = "{text}"\nquestion = " It was {word}."\n'
        'words = ["terrible", "great"]\nlabels = [0, 1]\n'
    )
    config = config_of(instruct, task=str(file))
    assert choose_form(config) is None
    assert task_of(config) == load_task(str(file))
    assert task_of(config_of(instruct, form="chat")) == shipped.model_copy(update={"form": "chat"})


def test_a_generation_has_no_form(settings: Settings) -> None:
    config = config_of(settings, task="texts", form="chat")
    with pytest.raises(TaskError, match="set chat = true in a task of chats"):
        task_of(config)
