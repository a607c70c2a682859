"""Baselines without training, and tasks of every kind in tuning: answers, choices, metrics."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tuning import Settings, setup_of, small, tuned, tuning_of

from samara.client.forward.body import PerturbedBody
from samara.client.tuning.baselines.icl import InContext
from samara.client.tuning.baselines.linear_probe import LinearProbe
from samara.shared.errors import DataError, TaskError
from samara.shared.model.loading import BaseModel
from samara.shared.model.prefix_cache import read_prefix
from samara.shared.protocol.directions import batch_order
from samara.shared.tasks.demonstrations import demonstration

ModelFolder = Callable[[str], Path]


@pytest.fixture
def settings(model_folder: ModelFolder, data_file: Path, tmp_path: Path) -> Settings:
    return small(model_folder("causal"), data_file, tmp_path / "run")


@pytest.mark.parametrize("family", ["causal", "masked", "encoder"])
def test_baselines_without_training(
    family: str, settings: Settings, tmp_path: Path, model_folder: ModelFolder
) -> None:
    changes = {"model__path": str(model_folder(family))}
    found = {
        method: tuned(tuning_of(settings, optimizer=method, out=str(tmp_path / method), **changes))
        for method in ("zero-shot", "linear-probe", *(["icl"] if family == "causal" else []))
    }
    for result in found.values():
        assert result["validation"]["examples"] == result["test"]["examples"] == 12
        assert "best_step" not in result
    assert found["linear-probe"]["test"]["accuracy"] > 0.8
    if family == "causal":
        assert found["icl"]["fewest_demonstrations"] > 0
        assert found["icl"]["test"]["loss"] != found["zero-shot"]["test"]["loss"]
    trained = tuned(tuning_of(settings, optimizer="fo-adam", steps=1, **changes))
    for split in ("validation", "test"):
        assert trained["zero_shot"][split] == found["zero-shot"][split]


@pytest.mark.parametrize("method", ["zero-shot", "icl"])
def test_a_label_bias_of_a_baseline_is_fitted_to_validation_examples(
    method: str, settings: Settings, tmp_path: Path
) -> None:
    changes: Settings = {"optimizer": method, "out": str(tmp_path / "plain")}
    plain = tuned(tuning_of(settings, **changes))
    changes |= {"adapter__label_bias": True, "out": str(tmp_path / "fitted")}
    fitted = tuned(tuning_of(settings, **changes))
    assert fitted["validation"]["loss"] < plain["validation"]["loss"]
    for split in ("validation", "test"):  # a shift of all scores leaves their order
        assert fitted[split]["auc"] == pytest.approx(plain[split]["auc"], abs=0.02)
    assert fitted["test"]["loss"] != plain["test"]["loss"]
    events = (tmp_path / "fitted" / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "fitted" / "result.json").unlink()
    (tmp_path / "fitted" / "metrics.jsonl").write_text(events[0] + "\n")
    assert tuned(tuning_of(settings, **changes))["test"] == fitted["test"]


def test_demonstrations_stand_before_an_example_and_as_many_as_fit(settings: Settings) -> None:
    setup = setup_of(settings, optimizer="icl", model__max_length=64)
    context = InContext(setup, 32)
    train, test = setup.splits["train"].examples, setup.splits["test"]
    order = batch_order(setup.root, 0, 0, len(train))
    shown = [demonstration(setup.task, train[index]) for index in order]
    tokenizer = setup.base.tokenizer

    def read(count: int, text: str) -> list[int]:
        whole = "".join(shown[:count]) + text + " It was"
        return [tokenizer.bos_token_id, *tokenizer(whole, add_special_tokens=False).input_ids]

    for example, prompt in zip(test.examples, test.prompts, strict=True):
        found = context.extend(prompt)
        (ids,) = found.sequences
        count = next(n for n in range(len(shown)) if len(read(n, example.text)) == len(ids))
        assert list(ids) == read(count, example.text)
        assert found.supervised == ((len(ids) - 1,),)
        assert len(ids) <= setup.base.context < len(read(count + 1, example.text))
        assert context.count(prompt) == count > 0


def test_demonstrations_do_not_stand_in_a_chat(settings: Settings, tmp_path: Path) -> None:
    folder = shutil.copytree(settings["model.path"], tmp_path / "instruct")
    template = "{{ messages[0]['content'] }}{% if add_generation_prompt %} was {% endif %}"
    template += "{% if not add_generation_prompt %} was {{ messages[1]['content'] }}{% endif %}"
    (folder / "chat_template.jinja").write_text(template)
    changes = {"model__path": str(folder), "optimizer": "icl"}
    with pytest.raises(
        TaskError, match="has the form of a chat, but demonstrations need a plain text"
    ):
        InContext(setup_of(settings, form="chat", **changes), 2)
    read = []
    for form in ("plain", "auto"):
        setup = setup_of(settings, form=form, **changes)
        (ids,) = InContext(setup, 2).extend(setup.splits["test"].prompts[0]).sequences
        read.append(ids)
    assert (setup.base.tokenizer.bos_token_id, *read[0]) == read[1]


def test_few_demonstrations_are_all_there(settings: Settings) -> None:
    setup = setup_of(settings, optimizer="icl", model__max_length=64)
    for count in (1, 2):
        context = InContext(setup, count)
        prompt = context.extend(setup.splits["test"].prompts[0])
        alone = setup.splits["test"].prompts[0]
        added = len(prompt.sequences[0]) - len(alone.sequences[0])
        assert prompt.supervised == (tuple(place + added for place in alone.supervised[0]),)
        assert context.count(alone) == count


@pytest.mark.parametrize("task", ["sst2", "choice"])
def test_demonstrations_are_read_once(
    task: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: Settings = {"optimizer": "icl", "model__max_length": 64}
    if task == "choice":
        rows = [
            {"q": f"the {thing}", "one": "good", "other": "very good", "label": number % 2}
            for number, thing in enumerate(("film", "day", "meal") * 20)
        ]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "task.toml").write_text(
            'kind = "choice"\nname = "which"\ntext = "{q} was {candidate}"\nlabel = "label"\n'
            'candidates = ["{one}", "{other}"]\n'
        )
        changes |= {"task": str(tmp_path / "task.toml"), "data__path": str(tmp_path / "rows.jsonl")}
    setup = setup_of(settings, **changes)
    context, test = InContext(setup, 32), setup.splits["test"]
    read = []
    context.scores(test)  # the first scores follow a check of the model

    def counted(base: BaseModel, prefix: tuple[int, ...]) -> Any:
        read.append(prefix)
        return read_prefix(base, prefix)

    monkeypatch.setattr("samara.client.forward.body.read_prefix", counted)
    shared = setup.result_of(*context.scores(test), test)
    assert sorted(read) == sorted({context.prefix(prompt) for prompt in test.prompts})
    monkeypatch.setattr(PerturbedBody, "_known_prefix", lambda *_: None)
    whole = setup.result_of(*context.scores(test), test)
    assert shared.loss == pytest.approx(whole.loss, rel=1e-5)
    assert shared.metric == whole.metric
    assert len(read) < len(test.prompts)


@pytest.fixture
def answers(tmp_path: Path) -> Settings:
    """A generation task and its rows."""
    rows = [{"q": f"the {thing}", "a": ["very good"]} for thing in ("film", "day", "meal")] * 20
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "qa.toml").write_text(
        'kind = "generation"\nname = "qa"\ntext = "{q} was {answer} ."\nlabel = "a"\ntokens = 3\n'
    )
    return {"task": str(tmp_path / "qa.toml"), "data__path": str(tmp_path / "rows.jsonl")}


@pytest.mark.parametrize("method", ["prge", "mezo", "fo-adam", "icl", "zero-shot"])
def test_a_generation_is_trained_by_likelihood_and_judged_by_its_answers(
    method: str, settings: Settings, answers: Settings
) -> None:
    few = {"data__validation": 4, "data__test": 6, "steps": 2}
    result = tuned(tuning_of(settings, optimizer=method, **answers, **few))
    assert result["metric"] == "token-f1"
    assert 0 <= result["test"]["token-f1"] <= 1
    if method == "fo-adam":
        assert result["curve"][-1]["loss"] < result["curve"][0]["loss"]


@pytest.mark.parametrize("method", ["prge", "mezo"])
def test_the_metric_of_answers_can_be_trained(
    method: str, settings: Settings, answers: Settings
) -> None:
    few = {"data__validation": 4, "data__test": 6, "steps": 4, "validate_every": 1}
    near = {"epsilon": 0.5 if method == "prge" else 0.1, "learning_rate": 1.0, "space": "auto"}
    settings_of_it = answers | few | near | {"objective": "metric"}
    result = tuned(tuning_of(settings, optimizer=method, **settings_of_it))
    assert len({point["loss"] for point in result["curve"]}) > 1


@pytest.fixture
def choices(tmp_path: Path) -> Settings:
    """A choice task and its rows, of two or three candidates."""
    options = (["good", "bad"], ["cold", "good"], ["very cold", "bad", "good"])
    rows = [{"s": "the film was _ .", "options": options[i % 3], "a": "good"} for i in range(60)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = 'kind = "choice"\nname = "gaps"\ntext = "{s}"\ngap = "_"\n'
    task += 'candidates = "{options}"\nlabel = "a"\n'
    (tmp_path / "gaps.toml").write_text(task)
    return {"task": str(tmp_path / "gaps.toml"), "data__path": str(tmp_path / "rows.jsonl")}


@pytest.mark.parametrize("method", ["prge", "fo-adam", "icl"])
def test_a_choice_is_trained_and_judged_by_its_candidates(
    method: str, settings: Settings, choices: Settings
) -> None:
    result = tuned(
        tuning_of(settings, optimizer=method, **choices, data__validation=6, data__test=6)
    )
    assert np.isfinite(result["test"]["loss"])
    if method == "fo-adam":
        assert result["curve"][-1]["loss"] < result["curve"][0]["loss"]


def test_a_label_bias_of_a_baseline_needs_common_labels(
    settings: Settings, choices: Settings
) -> None:
    changes = choices | {"adapter__label_bias": True}
    with pytest.raises(TaskError, match="have no common labels"):
        tuned(tuning_of(settings, optimizer="icl", **changes))


def test_the_likelihood_of_the_right_candidate_runs_no_other(
    settings: Settings, choices: Settings
) -> None:
    setup = setup_of(settings, objective="likelihood", **choices, data__validation=6, data__test=6)
    train, batch = setup.splits["train"], setup.batch(0)
    right, labels = setup.rows(batch)
    assert {len(prompt.sequences) for prompt in right} == {1}
    whole = [train.prompts[index] for index in batch]
    forward, evaluate = setup.base_engine()
    ours = setup.objective(evaluate(lambda own: forward.scores(own, right)), labels)
    all_run = evaluate(lambda own: forward.scores(own, whole))
    np.testing.assert_allclose(ours, setup.objective(all_run, train.labels[batch]), rtol=1e-5)


@pytest.mark.parametrize(
    ("words", "others", "sequences"),
    [
        (["very bad", "good"], {}, 1),
        (["very bad", "good"], {"objective": "cross-entropy"}, 2),
        (["very bad", "good"], {"adapter__label_bias": True}, 2),  # a score has its label's place
        (["bad", "good"], {}, 1),  # the position before the word has the scores of both
    ],
)
def test_label_words_run_where_their_scores_are_needed(
    words: list[str], others: Settings, sequences: int, settings: Settings, tmp_path: Path
) -> None:
    task = 'name = "words"\ntext = "{text}"\nquestion = " It was {word}."\n'
    task += f'words = {json.dumps(words)}\nlabels = ["0", "1"]\n'
    (tmp_path / "words.toml").write_text(task)
    own = {"objective": "likelihood", "task": str(tmp_path / "words.toml")} | others
    setup = setup_of(settings, **own)
    batch = setup.batch(0)
    prompts, labels = setup.rows(batch)
    assert {len(prompt.sequences) for prompt in prompts} == {sequences}
    keeps = sequences == 2 or words == ["bad", "good"]
    assert labels.tolist() == (setup.splits["train"].labels[batch] * keeps).tolist()


def test_a_metric_can_be_trained_by_zeroth_order(settings: Settings) -> None:
    result = tuned(tuning_of(settings, objective="metric", epsilon=0.5, learning_rate=1.0))
    assert len({point["loss"] for point in result["curve"]}) > 1


def test_linear_probing_reads_the_output_of_a_lower_block(settings: Settings) -> None:
    setup = setup_of(settings, optimizer="linear-probe", adapter__layers="readout:1")
    assert setup.base.depth == 1
    whole = setup_of(settings, optimizer="linear-probe")
    test = setup.splits["test"]
    assert LinearProbe(setup).evaluate(test).loss != LinearProbe(whole).evaluate(test).loss


def test_linear_probing_needs_labels_of_both_kinds(settings: Settings, answers: Settings) -> None:
    with pytest.raises(TaskError, match="linear probing needs the same labels for all rows"):
        LinearProbe(setup_of(settings, optimizer="linear-probe", **answers))
    with pytest.raises(DataError, match="all 1 training examples have one label"):
        LinearProbe(setup_of(settings, optimizer="linear-probe", data__train=1))
