"""Choice and generation on tiny models and on a small real one, against plain transformers."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from federations import Settings, config_of
from helpers import ROOT
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from samara.client.forward.body import PerturbedBody
from samara.client.forward.grouping import Schedule
from samara.client.forward.resident import ResidentForward
from samara.client.forward.trunk_cache import make_trunk_cache
from samara.shared.errors import ConfigError, TaskError
from samara.shared.model.loading import BaseModel, load_base_model
from samara.shared.model.lora_fa import Adapter, inject
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.scorers import Prompt, Scorer, scorer_for
from samara.shared.model.truncation import truncate
from samara.shared.protocol.directions import directions
from samara.shared.results.result import read_result
from samara.shared.settings.sections import AdapterSettings
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.data import load_examples
from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask, GenerationTask, Task
from samara.shared.tasks.label_scores import cross_entropy
from samara.shared.tasks.objectives import negative_log_likelihood
from samara.shared.tasks.rows import Example, read_rows
from samara.simulations.simulate import simulate

SHARED = ROOT.parent / "shared"
ModelFolder = Callable[[str], Path]

CHOICE = ChoiceTask(
    kind="choice", name="gaps", text="{s}", gap="_", candidates="{options}", label="right"
)
CHOICE_ROWS: list[dict[str, Any]] = [
    {"s": "the film was _ .", "options": ["good", "very bad", "not very cold"], "right": "good"},
    {"s": "it was a _ day", "options": ["kind", "awful"], "right": "awful"},
    {"s": "_ was the walk !", "options": ["great", "rude", "warm", "very fine"], "right": "rude"},
]
QA = GenerationTask(kind="generation", name="qa", text="{q} it was {answer} .", label="a", tokens=5)
QA_ROWS: list[dict[str, Any]] = [
    {"q": "the film !", "a": ["very good", "good"]},
    {"q": "a meal", "a": "not warm"},
    {"q": "the walk the day a film", "a": ["bad"]},
    {"q": "a day", "a": "great"},
]


class Rig(NamedTuple):
    base: BaseModel
    scorer: Scorer
    adapter: Adapter
    forward: ResidentForward

    def prompts(self, rows: Sequence[dict[str, Any]], task: Task) -> list[Prompt]:
        return [self.prompt(example) for example in examples_of(rows, task)]

    def prompt(self, example: Example) -> Prompt:
        return self.scorer.prompt(example.text, example.answers, example.cut)

    def zero(self) -> Perturbations:
        return Perturbations.from_arrays(
            self.adapter.layout, np.zeros(self.adapter.layout.size, np.float32)
        )


def examples_of(rows: Sequence[dict[str, Any]], task: Task) -> list[Example]:
    return [row.example for record in rows for row in read_rows(record, task)]


def rig_of(folder: Path, task: Task, max_length: int = 64) -> Rig:
    base = load_base_model(str(folder))
    with torch.inference_mode():
        scorer = scorer_for(base, task, max_length, PerturbedBody(base, 0))
    settings = AdapterSettings.model_validate({"layers": "top:2", "rank": 4})
    adapter = inject(base, settings, scorer.labels)
    cache = make_trunk_cache(base, adapter.first_block, 2**20)
    body = PerturbedBody(base, adapter.first_block, cache)
    return Rig(base, scorer, adapter, ResidentForward(adapter, scorer, body))


def movie_llama() -> Path:
    folder = SHARED / "models" / "movie-llama-12m"
    if not folder.is_dir():
        pytest.skip("no small real model beside the checkout, in shared/models/movie-llama-12m")
    return folder


def real_rows(name: str) -> Path:
    if not (SHARED / "data" / name).exists():
        pytest.skip(f"no real rows beside the checkout, in shared/data/{name}")
    return SHARED / "data" / name


def plain_mean(plain: BaseModel, before: str, after: str) -> float:
    """The mean log-likelihood of the tokens of `after`, by the simplest use of transformers."""
    stem = [plain.tokenizer.bos_token_id]
    stem += plain.tokenizer(before.rstrip(), add_special_tokens=False).input_ids
    whole = [plain.tokenizer.bos_token_id]
    whole += plain.tokenizer(before + after, add_special_tokens=False).input_ids
    assert whole[: len(stem)] == stem
    with torch.no_grad():
        likely = plain.network(torch.tensor([whole])).logits[0].log_softmax(-1)
    places = range(len(stem), len(whole))
    return float(np.mean([likely[place - 1, whole[place]].item() for place in places]))


def plain_greedy(plain: BaseModel, text: str, tokens: int) -> list[int]:
    ids = [plain.tokenizer.bos_token_id]
    ids += plain.tokenizer(text.rstrip(), add_special_tokens=False).input_ids
    begin = len(ids)
    for _ in range(tokens):
        with torch.no_grad():
            ids.append(int(plain.network(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[begin:]


def decoded(base: BaseModel, ids: Sequence[int]) -> str:
    return str(base.tokenizer.decode(ids, skip_special_tokens=True))


def test_candidates_score_as_in_the_plain_model_and_missing_ones_never_win(
    model_folder: ModelFolder,
) -> None:
    rig = rig_of(model_folder("causal"), CHOICE)
    scores = rig.forward.scores(rig.zero(), rig.prompts(CHOICE_ROWS, CHOICE))[0]
    assert scores.shape == (3, 4)
    plain = load_base_model(str(model_folder("causal")))
    for example, row in zip(examples_of(CHOICE_ROWS, CHOICE), scores, strict=True):
        expected = [plain_mean(plain, example.text, answer) for answer in example.answers]
        np.testing.assert_allclose(row[: len(expected)], expected, atol=2e-5)
        assert np.all(row[len(expected) :] == -np.inf)
    labels = np.array([0, 1, 1])
    (loss,) = cross_entropy(scores[None], labels)
    own = [
        cross_entropy(row[None, None, np.isfinite(row)], labels[i : i + 1])[0]
        for i, row in enumerate(scores)
    ]
    assert loss == pytest.approx(np.mean(own))


@pytest.mark.parametrize("kind", ["choice", "generation"])
def test_every_grouping_gives_the_same_scores(kind: str, model_folder: ModelFolder) -> None:
    task, rows = (CHOICE, CHOICE_ROWS) if kind == "choice" else (QA, QA_ROWS)
    rig = rig_of(model_folder("causal"), task)
    prompts = rig.prompts(rows, task)
    center = np.random.default_rng(1).normal(0, 0.5, rig.adapter.layout.size).astype(np.float32)
    z = directions(np.arange(2, dtype=np.uint64), rig.adapter.layout.size, "gaussian")
    perturbations = Perturbations.from_arrays(rig.adapter.layout, center, z, 0.25)
    whole = rig.forward.scores(perturbations, prompts)
    assert whole.shape[:2] == (4, len(rows))
    there = np.isfinite(whole[0])
    assert np.abs(whole[0][there] - whole[2][there]).max() > 1e-3
    for grouping, size in (("sequential", 1), ("inner", 2), ("outer", 3)):
        again = rig.forward.scores(perturbations, prompts, Schedule(grouping, size))  # type: ignore[arg-type]
        np.testing.assert_allclose(again, whole, atol=3e-5)


def test_an_answer_is_scored_token_by_token_with_what_ends_it(model_folder: ModelFolder) -> None:
    rig = rig_of(model_folder("causal"), QA)
    scores = rig.forward.scores(rig.zero(), rig.prompts(QA_ROWS, QA))[0]
    assert scores.shape == (4, 2)
    plain = load_base_model(str(model_folder("causal")))
    expected = [
        plain_mean(plain, example.text, example.answers[0] + " .")
        for example in examples_of(QA_ROWS, QA)
    ]
    np.testing.assert_allclose(scores[:, 0], expected, atol=2e-5)
    (loss,) = negative_log_likelihood(scores[None], np.zeros(4, np.int64))
    assert loss == pytest.approx(-np.mean(expected), abs=1e-5)


@pytest.mark.parametrize("micro_batch", [0, 1, 3])
def test_decoding_takes_the_likeliest_token_until_the_stop_or_the_limit(
    micro_batch: int, model_folder: ModelFolder
) -> None:
    rig = rig_of(model_folder("causal"), QA)
    plain = load_base_model(str(model_folder("causal")))
    texts = [example.text for example in examples_of(QA_ROWS, QA)]
    answers = rig.forward.decode_answers(
        rig.zero(), [rig.scorer.prompt(text) for text in texts], micro_batch
    )
    free = [decoded(plain, plain_greedy(plain, text, QA.tokens)) for text in texts]
    assert answers == [text.partition(".")[0].strip() for text in free]
    assert any(answers)


def test_decoding_follows_the_adapter_and_ends_at_the_stop(model_folder: ModelFolder) -> None:
    free = QA.model_copy(update={"text": "{q} it was {answer}"})
    rig = rig_of(model_folder("causal"), free)
    prompt = rig.scorer.prompt("the film ! it was")
    noise = np.random.default_rng(3).normal(0, 3, rig.adapter.layout.size).astype(np.float32)
    (plain,) = rig.forward.decode_answers(rig.zero(), [prompt])
    (moved,) = rig.forward.decode_answers(
        Perturbations.from_arrays(rig.adapter.layout, noise), [prompt]
    )
    assert plain != moved
    assert len(plain.split()) == free.tokens
    first, second, *_ = plain.split()
    stopping = free.model_copy(update={"text": f"{{q}} it was {{answer}} {second}"})
    other = rig_of(model_folder("causal"), stopping)
    assert other.forward.decode_answers(other.zero(), [prompt]) == [
        first.partition(second)[0].strip()
    ]


def test_decoding_ends_at_the_end_of_text_token(model_folder: ModelFolder) -> None:
    free = QA.model_copy(update={"text": "{q} it was {answer}"})
    rig = rig_of(model_folder("causal"), free)
    prompt = rig.scorer.prompt("the film ! it was")
    first = rig.forward.decode_answers(rig.zero(), [prompt])[0].split()[0]
    rig.base.tokenizer.eos_token = first
    assert rig.forward.decode_answers(rig.zero(), [prompt]) == [""]


def test_texts_of_one_length_go_on_together_token_by_token(
    model_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_of(model_folder("causal"), QA)
    prompts = [rig.scorer.prompt(text) for text in ("a day was", "the film was", "a cold day was")]
    alone = [rig.forward.decode_answers(rig.zero(), [prompt]) for prompt in prompts]
    given: list[list[int]] = []
    run = PerturbedBody.continue_texts

    def counted(body: PerturbedBody, tokens: Sequence[Any], cache: Any = None) -> Any:
        given.append([len(text) for text in tokens])
        return run(body, tokens, cache)

    monkeypatch.setattr(PerturbedBody, "continue_texts", counted)
    before = rig.forward.passes
    assert [[answer] for answer in rig.forward.decode_answers(rig.zero(), prompts)] == alone
    short, long = (len(prompts[index].sequences[0]) for index in (0, 2))
    assert given[0] == [short] * 2
    assert [counts for counts in given if counts[0] > 1] == [[short] * 2, [long]]
    assert rig.forward.passes - before == sum(map(len, given))


def test_only_a_generation_is_decoded_and_only_at_one_point(model_folder: ModelFolder) -> None:
    choice = rig_of(model_folder("causal"), CHOICE)
    with pytest.raises(TaskError, match="only a generation task has answers to decode"):
        choice.forward.decode_answers(choice.zero(), [])
    rig = rig_of(model_folder("causal"), QA)
    z = directions(np.arange(1, dtype=np.uint64), rig.adapter.layout.size, "gaussian")
    pair = Perturbations.from_arrays(
        rig.adapter.layout, np.zeros(rig.adapter.layout.size, np.float32), z, 0.1
    )
    with pytest.raises(ValueError, match="under one perturbation, not under 2"):
        rig.forward.decode_answers(pair, [])
    assert rig.forward.decode_answers(rig.zero(), []) == []


def test_decoding_leaves_the_trunk_cache_alone(model_folder: ModelFolder) -> None:
    rig = rig_of(model_folder("causal"), QA)
    cache = make_trunk_cache(rig.base, rig.adapter.first_block, 2**20)
    assert cache is not None
    forward = ResidentForward(
        rig.adapter, rig.scorer, PerturbedBody(rig.base, rig.adapter.first_block, cache)
    )
    prompt = rig.scorer.prompt("the film ! it was")
    forward.decode_answers(rig.zero(), [prompt])
    assert cache.get(prompt.sequences[0]) is None


@pytest.mark.parametrize("family", ["masked", "encoder"])
@pytest.mark.parametrize("task", [CHOICE, QA], ids=["choice", "generation"])
def test_other_families_refuse_what_they_cannot_do(
    family: str, task: Task, model_folder: ModelFolder
) -> None:
    called = {"masked": "a masked LM", "encoder": "a sentence encoder"}[family]
    with pytest.raises(TaskError, match=f"is a {task.kind}, but .* is {called}, .*a causal LM"):
        rig_of(model_folder(family), task)


@pytest.mark.parametrize("task", [CHOICE, QA], ids=["choice", "generation"])
def test_a_label_bias_needs_labels(task: Task, model_folder: ModelFolder) -> None:
    base = load_base_model(str(model_folder("causal")))
    scorer = scorer_for(base, task, 64, PerturbedBody(base, 0))
    settings = AdapterSettings.model_validate({"label-bias": True})
    with pytest.raises(ConfigError, match=r"adapter\.label-bias: .* the same labels"):
        inject(base, settings, scorer.labels)


def test_answers_that_no_token_can_say(model_folder: ModelFolder) -> None:
    rig = rig_of(model_folder("causal"), CHOICE)
    with pytest.raises(TaskError, match=r"the answer '\\n' has no token"):
        rig.scorer.prompt("the film was", ("good", "\n"))
    with pytest.raises(
        TaskError, match=r"\d+ tokens are needed for a candidate alone, but the limit is 64"
    ):
        rig.scorer.prompt("the film was", ("good", "very " * 70))


def test_a_candidate_at_the_beginning_needs_a_token_before_it(model_folder: ModelFolder) -> None:
    base = load_base_model(str(model_folder("causal")))
    base.tokenizer.bos_token = None
    scorer = scorer_for(base, CHOICE, 64, PerturbedBody(base, 0))
    with pytest.raises(TaskError, match="has no token that begins a text"):
        scorer.prompt("", ("good", "bad"))
    base.tokenizer.eos_token = "."
    scorer = scorer_for(base, CHOICE, 64, PerturbedBody(base, 0))
    assert scorer.prompt("", ("good", "bad")).sequences[0] == (
        base.tokenizer.convert_tokens_to_ids("."),
    )


def test_a_long_row_loses_the_field_that_may_be_cut(model_folder: ModelFolder) -> None:
    task = ClassificationTask(
        name="t",
        text="{a} a {b} it",
        question=" was {word}",
        words=("good", "bad"),
        labels=(("0",), ("1",)),
        cut="a",
    )
    rig = rig_of(model_folder("causal"), task, 16)
    ((example, *_),) = read_rows({"a": "film " * 40, "b": "day meal", "label": 0}, task)
    ids = rig.prompt(example).sequences[0]
    assert len(ids) == 15
    assert decoded(rig.base, ids).split() == ["film"] * 9 + ["a", "day", "meal", "it", "was"]
    ((longer, *_),) = read_rows({"a": "film " * 40, "b": "day " * 40, "label": 0}, task)
    kept = decoded(rig.base, rig.prompt(longer).sequences[0]).split()
    assert kept == ["a"] + ["day"] * 12 + ["was"]


def test_a_long_text_before_an_answer_loses_its_beginning(model_folder: ModelFolder) -> None:
    rig = rig_of(model_folder("causal"), QA, 16)
    (example,) = examples_of([{"q": "film " * 40 + "day", "a": "good"}], QA)
    prompt = rig.prompt(example)
    assert decoded(rig.base, prompt.sequences[0]).split()[-4:] == ["day", "it", "was", "good"]
    alone = rig.scorer.prompt(example.text)
    assert prompt.sequences[0][: len(alone.sequences[0])] == alone.sequences[0]
    assert len(alone.sequences[0]) + QA.tokens <= 16


@given(
    st.text(alphabet=st.sampled_from("a b1.,'é漢😀\n"), max_size=80),
    st.tuples(st.integers(0, 80), st.integers(0, 80)),
    st.integers(1, 20),
    st.booleans(),
)
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_a_shortened_text_always_fits(
    text: str, cut: tuple[int, int], room: int, keep_end: bool
) -> None:
    scorer = real_scorer()
    start, end = sorted(min(place, len(text)) for place in cut)
    short = truncate(scorer.base, text, room, (start, end), keep_end)
    assert len(scorer._ids(short, special=False)) <= room
    if len(scorer._ids(text, special=False)) <= room:
        assert short == text
    elif len(short) > start + len(text) - end:
        assert short.startswith(text[:start])
        assert short.endswith(text[end:])


_real: list[Scorer] = []


def real_scorer() -> Scorer:
    if not _real:
        base = load_base_model(str(movie_llama()))
        _real.append(scorer_for(base, load_task("sst2"), 64, PerturbedBody(base, 0)))
    return _real[0]


@pytest.mark.parametrize(
    ("name", "source"),
    [("rte", "rte"), ("cb", "cb"), ("sst2", "sst2_sentences"), ("boolq", "boolq/train_1000.jsonl")],
)
def test_label_words_of_shipped_tasks_are_one_token_and_rows_fit(name: str, source: str) -> None:
    folder, path = movie_llama(), real_rows(source)
    task = load_task(name)
    rig = rig_of(folder, task, 128)
    prompts = [rig.prompt(example) for example in load_examples(str(path), task, 0)[:50]]
    assert {len(prompt.sequences) for prompt in prompts} == {1}
    assert max(len(prompt.sequences[0]) for prompt in prompts) <= 128
    scores = rig.forward.scores(rig.zero(), prompts[:4])
    assert scores.shape[:2] == (1, 4)
    assert np.all(np.isfinite(scores))


def test_a_real_choice_scores_as_in_the_plain_model() -> None:
    folder, source = movie_llama(), real_rows("copa")
    task = load_task("copa")
    examples = load_examples(str(source), task, 0)[:6]
    rig = rig_of(folder, task, 128)
    scores = rig.forward.scores(rig.zero(), [rig.prompt(example) for example in examples])[0]
    plain = load_base_model(str(folder))
    expected: NDArray[np.float64] = np.array(
        [[plain_mean(plain, e.text, answer) for answer in e.answers] for e in examples]
    )
    np.testing.assert_allclose(scores, expected, atol=1e-4)


def test_a_real_model_answers_as_the_plain_model_would() -> None:
    task = GenerationTask(
        kind="generation", name="films", text="{q} {answer}.", label="a", tokens=6
    )
    rig = rig_of(movie_llama(), task, 64)
    texts = ["the film was", "i think that the actors were", "overall it was"]
    answers = rig.forward.decode_answers(rig.zero(), [rig.scorer.prompt(text) for text in texts])
    plain = load_base_model(str(movie_llama()))
    free = [decoded(plain, plain_greedy(plain, text, 6)) for text in texts]
    assert answers == [text.partition(".")[0].strip() for text in free]


def pairs_file(folder: Path) -> Path:
    """120 rows, each a choice between two sentences about a film."""
    rows = [
        {
            "premise": f"the {['film', 'meal', 'walk'][i % 3]} was {['very', 'not'][i // 3 % 2]}",
            "choice1": ["good", "warm"][i % 2],
            "choice2": ["bad", "cold"][i // 2 % 2],
            "question": ["cause", "effect"][i // 5 % 2],
            "label": i // 3 % 2,
        }
        for i in range(120)
    ]
    file = folder / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_federation_takes_a_choice_with_listed_candidates(
    settings: Settings, tmp_path: Path
) -> None:
    changes = {"task": "copa", "data__path": str(pairs_file(tmp_path)), "personal__rounds": 1}
    result = read_result(simulate(config_of(settings, **changes)))
    tests = [event["columns"] for event in result["evaluations"] if event["split"] == "test"]
    assert tests[0]["global"]["examples"] == 24
    assert np.shape(tests[0]["global"]["confusion"]) == (2, 2)
    assert tests[0]["global"]["loss"] != tests[-1]["personalized"]["loss"]


def test_a_federation_refuses_tasks_that_it_cannot_evaluate_by_counts(settings: Settings) -> None:
    refusal = "task open choice: a federation counts .* candidates differ from row to row"
    with pytest.raises(ConfigError, match=refusal):
        simulate(config_of(settings, task="record"))
