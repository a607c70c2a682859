"""Federations of texts: token likelihood of answers and of plain texts, by client."""

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import Live, Settings, config_of
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from known_noise import add_known_noise
from residents import CLIENTS, device_settings, resident

from samara.client.forward.body import PerturbedBody
from samara.client.trainer.trainer_service import serve_trainer
from samara.client.training.model_runtime import load_run
from samara.server.app import serve
from samara.shared.errors import ConfigError, TaskError
from samara.shared.model.loading import load_base_model
from samara.shared.model.scorers import GenerationScorer, Prompt, scorer_for
from samara.shared.model.windows import cut_into_windows
from samara.shared.results.result import RunResult, read_result
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.kinds import GenerationTask
from samara.shared.tasks.rows import Example
from samara.simulations.comparison.columns import client_columns
from samara.simulations.comparison.comparison import compare_runs
from samara.simulations.comparison.measure import BITS_PER_BYTE, TextMetrics
from samara.simulations.comparison.tables import csv_of, render_comparison
from samara.simulations.experiments.passage_writer import CONTINUED_TOKENS, write_missing_passages
from samara.simulations.report.html import page_of
from samara.simulations.simulate import simulate
from samara.simulations.writing.passages import PASSAGES_FILE, read_passages

ModelFolder = Callable[[str], Path]
WORDS = ("film", "day", "meal", "walk", "good", "bad", "warm", "awful")
TEXTS = GenerationTask(kind="generation", name="texts", text="{answer}", label="text", tokens=6)


@pytest.fixture
def texts(settings: Settings, tmp_path: Path) -> Settings:
    """The settings of three writers of short texts, each with favourite words."""
    rng = np.random.default_rng(0)
    rows = []
    for user in range(3):
        favourites = WORDS[user : user + 4]
        for _ in range(12):
            words = rng.choice(favourites, int(rng.integers(3, 10)))
            rows.append({"user": f"u{user}", "text": "the " + " ".join(words)})
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = {"task": "texts", "data.path": str(file), "data.partition": "user"}
    return settings | own | {"personal.rounds": 1, "rounds": 2, "queries": 4}


@pytest.fixture
def scorer(model_folder: ModelFolder) -> GenerationScorer:
    return scorer_of(model_folder, TEXTS, 64)


def scorer_of(model_folder: ModelFolder, task: GenerationTask, length: int) -> GenerationScorer:
    base = load_base_model(str(model_folder("causal")))
    with torch.inference_mode():
        made = scorer_for(base, task, length, PerturbedBody(base, 0))
    assert isinstance(made, GenerationScorer)
    return made


def plain_losses(scorer: GenerationScorer, prompt: Prompt) -> list[float]:
    """Minus the log-likelihood of each target, by the simplest use of transformers."""
    likely, targets = plain_predictions(scorer, prompt), prompt.targets[0]
    return [-float(row[token]) for row, token in zip(likely, targets, strict=True)]


def plain_hits(scorer: GenerationScorer, prompt: Prompt) -> int:
    """The number of targets that are the most likely token, by the simplest use of transformers."""
    best = plain_predictions(scorer, prompt).argmax(-1).tolist()
    return sum(one == token for one, token in zip(best, prompt.targets[0], strict=True))


def plain_predictions(scorer: GenerationScorer, prompt: Prompt) -> torch.Tensor:
    (ids,), (targets,) = prompt.sequences, prompt.targets
    with torch.no_grad():
        likely = scorer.base.network(torch.tensor([ids])).logits[0].log_softmax(-1)
    return likely[len(ids) - len(targets) :]


def test_every_client_has_the_loss_of_its_texts_under_every_model(texts: Settings) -> None:
    folder = simulate(config_of(texts))
    result = RunResult.read(folder)
    columns = client_columns(result)
    assert list(columns) == ["zero-shot", "local-only", "global", "personalized"]
    for client, own in columns["zero-shot"].items():
        assert isinstance(own, TextMetrics)
        facts = result.clients[client].facts
        assert facts["split_tokens"]["test"] == own.examples
        assert facts["split_bytes"]["test"] == own.bytes
        bits = own.bits_per_byte * own.bytes * math.log(2)
        assert bits == pytest.approx(own.loss * own.examples)
        assert own.perplexity == pytest.approx(math.exp(own.loss))
    events = read_result(folder)["evaluations"]
    assert np.shape(events[0]["columns"]["global"]["confusion"]) == (2, 2)


def test_an_evaluation_is_the_mean_over_all_tokens(
    texts: Settings, model_folder: ModelFolder
) -> None:
    """Loss and predicted tokens equal those of plain transformers."""
    config = config_of(texts, rounds=1, steps=1, personal__rounds=0)
    result = RunResult.read(simulate(config))
    (first, *_) = [e for e in result.evaluations if e.split == "validation"]
    task = load_task("texts")
    assert isinstance(task, GenerationTask)
    scorer = scorer_of(model_folder, task, config.model.max_length)
    shares = load_run(config).data
    for client, own in first.columns["global"].clients.items():
        held = [e for e in shares.share_of(client, 3).examples if e.split == "validation"]
        prompts = [scorer.prompt(one.text, one.answers) for one in held]
        losses = [loss for prompt in prompts for loss in plain_losses(scorer, prompt)]
        assert own.examples == len(losses)
        assert own.accuracy == sum(plain_hits(scorer, one) for one in prompts) / len(losses)
        assert own.loss == pytest.approx(np.mean(losses), abs=1e-5)


def test_models_continue_the_beginnings_of_texts(texts: Settings) -> None:
    """The base model's greedy texts equal those of plain transformers."""
    config = config_of(texts, evaluate__passages=1)
    folder = simulate(config)
    write_missing_passages(folder)
    passages = read_passages(folder)
    assert [(one.client, one.split) for one in passages] == [
        (client, split) for client in range(3) for split in ("test", "train")
    ]
    base = load_base_model(config.model.path)
    for one in passages:
        assert list(one.greedy) == ["zero-shot", "global", "personalized"]
        assert list(one.sampled) == (list(one.greedy) if one.split == "test" else [])
        prompt = [base.tokenizer.bos_token_id, *base.tokenizer(one.prompt)["input_ids"]]
        written = base.network.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            max_new_tokens=CONTINUED_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )[0, len(prompt) :]
        assert one.greedy["zero-shot"] == base.tokenizer.decode(written, skip_special_tokens=True)
    before = (folder / PASSAGES_FILE).stat().st_mtime_ns
    write_missing_passages(folder)
    assert (folder / PASSAGES_FILE).stat().st_mtime_ns == before


def test_runs_of_texts_are_compared_by_bits_per_byte(texts: Settings, tmp_path: Path) -> None:
    one, other = (
        simulate(config_of(texts, method=method, out=str(tmp_path / method)))
        for method in ("finetune", "ditto")
    )
    comparison = compare_runs([one])
    assert comparison.measure is BITS_PER_BYTE
    columns = client_columns(RunResult.read(one))
    tested = {row.against.name: row.quality for row in comparison.tested}
    for name in ("zero-shot", "global"):
        saved = [
            columns[name][client].bits_per_byte - columns["personalized"][client].bits_per_byte  # type: ignore[attr-defined]
            for client in range(3)
        ]
        np.testing.assert_allclose(tested[name].by_client, saved, atol=1e-12)
    assert csv_of(comparison).splitlines()[0].split(",")[4:6] == ["bits_per_byte", "perplexity"]
    both = compare_runs([one, other])
    assert list(render_comparison(both))
    page = page_of(both)
    assert "bits per byte" in page
    assert "accuracy" not in page[: page.index("Costs of a client")].lower()


@pytest.mark.parametrize("method", ["local", "global", "mixture", "partial", "cluster"])
def test_every_method_without_labels_trains_texts(texts: Settings, method: str) -> None:
    own = {
        "partial": {"personal__part": "*q_proj*"},
        "cluster": {"cohort__clustering_rounds": 1},
    }
    result = RunResult.read(simulate(config_of(texts, method=method, **own.get(method, {}))))
    final = list(client_columns(result).values())[-1]
    assert len(final) == 3
    assert all(math.isfinite(own.loss) for own in final.values())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"adapter__layers": "readout"}, "set adapter.layers to top:1"),
        ({"adapter__label_bias": True}, "a text has no labels"),
        ({"method": "readout", "adapter__label_bias": True}, "a text has no labels"),
        ({"gradients": "exact"}, "set gradients to differences"),
    ],
)
def test_what_texts_cannot_be_combined_with_is_refused(
    texts: Settings, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        simulate(config_of(texts, **changes))
    assert not Path(texts["out"]).exists()


@given(st.lists(st.sampled_from([*WORDS, "…", "\n", "  "]), min_size=1, max_size=60))
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_windows_are_the_text_in_parts_that_fit(scorer: GenerationScorer, words: list[str]) -> None:
    text = "the " + " ".join(words)
    windows = cut_into_windows([Example("", 0, "ann", "test", (text,))], scorer)
    assert "".join(window.answers[0] for window in windows).rstrip() == text.rstrip()
    for window in windows:
        assert len(scorer.answer_tokens(window.text, window.answers[0])) <= TEXTS.tokens
        assert (window.user, window.split) == ("ann", "test")
    for before, window in pairwise(windows):
        assert window.text.endswith(before.answers[0][-len(window.text) :])


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=40))
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_the_loss_of_windows_is_that_of_the_whole_text(
    scorer: GenerationScorer, words: list[str]
) -> None:
    """Every token is scored once, after as many earlier tokens as the model accepts."""
    text = " ".join(words)
    windows = cut_into_windows([Example("", 0, "", "test", (text,))], scorer)
    prompts = [scorer.prompt(window.text, window.answers) for window in windows]
    whole = scorer.base.tokenizer(text, add_special_tokens=False)["input_ids"]
    begin = prompts[0].sequences[0][:1]
    at_once = Prompt(((*begin, *whole[:-1]),), ((),), (tuple(whole),))
    losses = [loss for prompt in prompts for loss in plain_losses(scorer, prompt)]
    np.testing.assert_allclose(losses, plain_losses(scorer, at_once), atol=1e-4)
    assert sum(prompt.target_bytes for prompt in prompts) == len(text.encode())


def test_a_text_that_fits_stays_as_it_is(scorer: GenerationScorer) -> None:
    example = Example("", 0, "", "train", ("the film was good",))
    assert cut_into_windows([example], scorer) == [example]


def test_a_long_answer_counts_as_far_as_it_is_scored(model_folder: ModelFolder) -> None:
    task = GenerationTask(
        kind="generation", name="qa", text="{q} it was {answer}", label="a", tokens=3
    )
    scorer = scorer_of(model_folder, task, 64)
    prompt = scorer.prompt("the film it was ", ("good warm bad awful",))
    assert len(prompt.targets[0]) == 3
    assert prompt.target_bytes == len("good warm bad")


def test_a_plain_text_is_nothing_but_an_answer(tmp_path: Path) -> None:
    file = tmp_path / "task.toml"
    file.write_text('kind = "generation"\nname = "x"\ntext = "Note: {answer}"\nlabel = "text"\n')
    with pytest.raises(TaskError, match="names no field of a row"):
        load_task(str(file))


def test_live_clients_train_texts_as_simulated_ones_do(
    texts: Settings, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each live client has a file and a trainer on a socket."""
    short = tmp_path_factory.mktemp("s")
    rows = [json.loads(line) for line in Path(texts["data.path"]).read_text().splitlines()]
    settings, folders = [], [short / str(client) for client in CLIENTS]
    for user in range(len(CLIENTS)):
        file = short / f"u{user}.jsonl"
        own = [row for row in rows if row["user"] == f"u{user}"]
        file.write_text("".join(json.dumps(row) + "\n" for row in own))
        settings.append(texts | {"data.path": str(file)})
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    config = config_of(texts | theirs, cohort__available=2, evaluate__every=0)
    residents = [resident(*one) for one in zip(settings, CLIENTS, folders, strict=True)]
    sockets = [short / f"{client}.sock" for client in CLIENTS]
    with (
        serve_trainer(lambda: residents[0], sockets[0]),
        serve_trainer(lambda: residents[1], sockets[1]),
    ):
        folder = serve(config, Live(sockets, config))
    result = RunResult.read(folder)
    final = client_columns(result)
    assert list(final) == ["zero-shot", "local-only", "global", "personalized"]
    assert all(isinstance(own, TextMetrics) for own in final["personalized"].values())
    for one, client, where in zip(settings, CLIENTS, folders, strict=True):
        device_settings(one, client, where).write()
    repeated = config_of(config.flat(), out=str(short / "again"))
    again = RunResult.read(simulate(repeated, cohorts_from=folder, homes=folders))
    assert again.final_digest == result.final_digest
    for name, figures in client_columns(again).items():
        assert [own.loss for own in figures.values()] == [own.loss for own in final[name].values()]


def test_a_fleet_trains_texts_as_the_same_clients_do_without_one(
    texts: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each device computes its passes alone; time and energy come from a profile."""
    monkeypatch.setattr("samara.simulations.fleet.clients.MOST_ROWS", 0)
    here = {"method": "finetune", "queries": 2}
    fleet = {"fleet__devices": '[{"device": "laptop", "share": 1}]'}
    plain, emulated = (
        RunResult.read(simulate(config_of(texts, **here, **own, out=str(tmp_path / str(len(own))))))
        for own in ({}, fleet)
    )
    assert emulated.final_digest == plain.final_digest
    assert all(event.fleet is not None and event.fleet.ended > 0 for event in emulated.rounds)
    for name, own in client_columns(emulated).items():
        others = client_columns(plain)[name]
        assert [one.loss for one in own.values()] == [one.loss for one in others.values()]
    assert "For texts, it is the accuracy of tokens" in page_of(compare_runs([tmp_path / "1"]))


def test_streamed_blocks_do_not_change_a_run_of_texts(texts: Settings, tmp_path: Path) -> None:
    here = {"method": "global", "grouping": "both"}
    digests = {
        RunResult.read(
            simulate(config_of(texts, **here, model__stream=stream, out=str(tmp_path / stream)))
        ).final_digest
        for stream in ("off", "host")
    }
    assert len(digests) == 1


@pytest.mark.parametrize("mode", ["central", "distributed"])
def test_masks_do_not_change_a_private_run_of_texts(
    texts: Settings, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both runs have the same noise. Clients and server must agree on every digest."""
    add_known_noise(monkeypatch)
    private = {
        "privacy__mode": mode,
        "privacy__clip": 2.0,
        "privacy__noise_multiplier": 0.5,
        "privacy__honest_share": 0.7,
        "seed_policy": "shared",
        "aggregation__rule": "mean",
        "method": "global",
        "cohort__minimum": 3,
    }
    digests = []
    for masks in (False, True):
        out = str(tmp_path / str(masks))
        config = config_of(texts, **private, privacy__secure_aggregation=masks, out=out)
        result = RunResult.read(simulate(config))
        assert {event.reports for event in result.rounds} == {3}
        digests.append(result.final_digest)
    assert digests[0] == digests[1]
