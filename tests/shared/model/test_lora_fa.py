"""Adapters, scorers and the forward engine on tiny models of the three families."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from samara.client.forward.body import PerturbedBody
from samara.client.forward.grouping import Schedule
from samara.client.forward.resident import ResidentForward
from samara.client.forward.trunk_cache import make_trunk_cache
from samara.shared.errors import ModelError, TaskError
from samara.shared.model.loading import BaseModel, load_base_model
from samara.shared.model.lora_fa import LABEL_BIAS, Adapter, inject
from samara.shared.model.model_folder import model_id
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.scorers import Prompt, Scorer, scorer_for
from samara.shared.protocol.directions import directions
from samara.shared.settings.sections import AdapterSettings
from samara.shared.tasks.kinds import ClassificationTask

FAMILIES = ("causal", "masked", "encoder")
TEXTS = ("the film was good .", "a day", "the meal was not very cold ! a walk", "kind")
MiB = 2**20

ModelFolder = Callable[[str], Path]


def task(words: tuple[str, ...] = ("terrible", "great")) -> ClassificationTask:
    return ClassificationTask.model_validate(
        {
            "name": "test",
            "text": "{text}",
            "question": " it was {word} .",
            "words": words,
            "labels": list(range(len(words))),
        }
    )


def assembled(
    folder: Path, words: tuple[str, ...] = ("terrible", "great"), **settings: object
) -> tuple[BaseModel, Scorer, Adapter]:
    base = load_base_model(str(folder))
    with torch.inference_mode():
        scorer = scorer_for(base, task(words), 64, PerturbedBody(base, 0))
    adapter = inject(base, AdapterSettings.model_validate({"layers": "top:2"} | settings), 2)
    return base, scorer, adapter


def prompts_of(scorer: Scorer) -> list[Prompt]:
    return [scorer.prompt(text) for text in TEXTS]


def somewhere(adapter: Adapter) -> NDArray[np.float32]:
    return np.random.default_rng(1).normal(0, 0.5, adapter.layout.size).astype(np.float32)


def z_of(adapter: Adapter, queries: int) -> NDArray[np.int16]:
    seeds = np.arange(queries, dtype=np.uint64)
    return directions(seeds, adapter.layout.size, "gaussian")


@pytest.mark.parametrize("family", FAMILIES)
def test_one_pass_equals_a_pass_per_point(family: str, model_folder: ModelFolder) -> None:
    base, scorer, adapter = assembled(model_folder(family))
    first = adapter.first_block
    engine = ResidentForward(
        adapter, scorer, PerturbedBody(base, first, make_trunk_cache(base, first, MiB))
    )
    center, z, epsilon = somewhere(adapter), z_of(adapter, 3), 0.25
    together = engine.scores(
        Perturbations.from_arrays(adapter.layout, center, z, epsilon), prompts_of(scorer)
    )
    assert together.shape == (6, len(TEXTS), 2)
    for point in range(6):
        sign = 1 if point < 3 else -1
        moved = center + np.float32(sign * epsilon / 2048) * z[point % 3].astype(np.float32)
        alone = engine.scores(Perturbations.from_arrays(adapter.layout, moved), prompts_of(scorer))
        np.testing.assert_allclose(together[point], alone[0], atol=2e-5)
    assert np.abs(together[0] - together[3]).max() > 1e-3
    perturbations = Perturbations.from_arrays(adapter.layout, center, z, epsilon)
    in_parts = engine.scores(perturbations, prompts_of(scorer), Schedule(micro_batch=3))
    np.testing.assert_allclose(in_parts, together, atol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_shared_trunk_changes_nothing(family: str, model_folder: ModelFolder) -> None:
    base, scorer, adapter = assembled(model_folder(family))
    perturbations = Perturbations.from_arrays(
        adapter.layout, somewhere(adapter), z_of(adapter, 2), 0.1
    )
    budgets = {"cached": MiB, "thrashing": 1, "in the pass": 0}
    scores = {}
    for name, cache_bytes in budgets.items():
        cache = make_trunk_cache(base, adapter.first_block, cache_bytes)
        engine = ResidentForward(adapter, scorer, PerturbedBody(base, adapter.first_block, cache))
        scores[name] = [engine.scores(perturbations, prompts_of(scorer)) for _ in range(2)]
    whole = ResidentForward(adapter, scorer, PerturbedBody(base, 0))
    expected = whole.scores(perturbations, prompts_of(scorer))
    for first, second in scores.values():
        np.testing.assert_array_equal(first, second)
        np.testing.assert_allclose(first, expected, atol=2e-5)
    np.testing.assert_array_equal(scores["cached"][0], scores["thrashing"][0])


@pytest.mark.parametrize("family", FAMILIES)
def test_zero_adapter_is_the_plain_model(family: str, model_folder: ModelFolder) -> None:
    base, scorer, adapter = assembled(model_folder(family))
    engine = ResidentForward(adapter, scorer, PerturbedBody(base, adapter.first_block))
    zeros = np.zeros(adapter.layout.size, np.float32)
    scores = engine.scores(Perturbations.from_arrays(adapter.layout, zeros), prompts_of(scorer))[0]
    plain = load_base_model(str(model_folder(family)))
    words = [plain.tokenizer.convert_tokens_to_ids(word) for word in ("terrible", "great")]
    for text, found in zip(TEXTS, scores, strict=True):
        np.testing.assert_allclose(found, reference(plain, text, words), atol=2e-5)


def reference(plain: BaseModel, text: str, words: list[int]) -> NDArray[np.float32]:
    """Scores by the simplest use of transformers, one text at a time."""
    with torch.no_grad():
        if plain.family == "causal":
            ids = plain.tokenizer("<s> " + text + " it was", return_tensors="pt").input_ids
            logits = plain.network(ids).logits[0, -1]
            scores = logits.log_softmax(-1)[words]
        elif plain.family == "masked":
            ids = plain.tokenizer(text + " it was [MASK] .", return_tensors="pt").input_ids
            logits = plain.network(ids).logits[0, -3]
            scores = logits.log_softmax(-1)[words]
        else:
            texts = [text, "it was terrible .", "it was great ."]
            embedded = []
            for one in texts:
                ids = plain.tokenizer(one, return_tensors="pt").input_ids
                mean = plain.network(ids).last_hidden_state[0].mean(0)
                embedded.append(mean / mean.norm())
            scores = torch.stack(embedded[1:]) @ embedded[0] / 0.05
    result: NDArray[np.float32] = scores.numpy()
    return result


def test_words_of_several_tokens_are_averaged(model_folder: ModelFolder) -> None:
    words = ("very bad", "great")
    base, scorer, adapter = assembled(model_folder("causal"), words)
    engine = ResidentForward(adapter, scorer, PerturbedBody(base, adapter.first_block))
    zeros = np.zeros(adapter.layout.size, np.float32)
    scores = engine.scores(Perturbations.from_arrays(adapter.layout, zeros), prompts_of(scorer))[0]
    plain = load_base_model(str(model_folder("causal")))
    tokenizer = plain.tokenizer
    for text, found in zip(TEXTS, scores, strict=True):
        stem = tokenizer("<s> " + text + " it was").input_ids
        for word, score in zip(words, found, strict=True):
            added = tokenizer(word).input_ids
            with torch.no_grad():
                likely = plain.network(torch.tensor([stem + added])).logits[0].log_softmax(-1)
            picked = [likely[len(stem) - 1 + i, token].item() for i, token in enumerate(added)]
            assert score == pytest.approx(np.mean(picked), abs=2e-5)


def test_label_bias_is_added_per_point(model_folder: ModelFolder) -> None:
    base, scorer, adapter = assembled(model_folder("encoder"), **{"label-bias": True})
    engine = ResidentForward(adapter, scorer, PerturbedBody(base, adapter.first_block))
    place, rows = adapter.layout.tensor_slice(LABEL_BIAS)
    assert rows == 2
    center = np.zeros(adapter.layout.size, np.float32)
    plain = engine.scores(Perturbations.from_arrays(adapter.layout, center), prompts_of(scorer))
    center[place] = [0.5, -1.0]
    biased = engine.scores(Perturbations.from_arrays(adapter.layout, center), prompts_of(scorer))
    np.testing.assert_allclose(biased - plain, np.broadcast_to([0.5, -1.0], plain.shape), atol=1e-5)


def test_layout_and_a_depend_on_settings_alone(model_folder: ModelFolder) -> None:
    first, again, other = (
        assembled(model_folder("causal"), seed=seed)[2].layout for seed in (0, 0, 1)
    )
    assert first.hash == again.hash != other.hash
    assert [tensor.name for tensor in first.tensors] == [
        f"layers.{layer}.self_attn.{name}_proj" for layer in (1, 2) for name in "qv"
    ]


def test_a_long_text_is_cut_and_the_question_kept(model_folder: ModelFolder) -> None:
    for family in ("causal", "masked"):
        _, scorer, _ = assembled(model_folder(family))
        (ids,) = scorer.prompt("film " * 500).sequences
        tail = scorer.prompt("film").sequences[0][-4 if family == "masked" else -2 :]
        assert len(ids) <= 64
        assert ids[-len(tail) :] == tail


def inside(text: str) -> ClassificationTask:
    return ClassificationTask.model_validate(
        {"name": "inside", "text": text, "words": ["terrible", "great"], "labels": [0, 1]}
    )


@pytest.mark.parametrize("text", ["{word} : {text}", "{text} ? {word} , {other}"])
def test_a_mask_may_stand_before_or_between_texts(text: str, model_folder: ModelFolder) -> None:
    base = load_base_model(str(model_folder("masked")))
    task, tokenizer = inside(text), base.tokenizer
    scorer = scorer_for(base, task, 24, PerturbedBody(base, 0))
    row = {"text": "a [MASK] film", "other": "the [MASK] day"}
    prompt = scorer.prompt(task.render(row), task.render_rest(row))
    whole = text.replace("{word}", "[MASK]").format(**row)
    assert prompt.sequences == (tuple(tokenizer(whole).input_ids),)
    before = tokenizer(text.split("{word}")[0].format(**row), add_special_tokens=False).input_ids
    assert prompt.supervised == ((1 + len(before),),)
    assert prompt.sequences[0][1 + len(before)] == tokenizer.mask_token_id
    long = {"text": "film " * 40, "other": "day " * 40}
    (ids,) = scorer.prompt(task.render(long), task.render_rest(long)).sequences
    assert 23 <= len(ids) <= 24
    assert ids.count(tokenizer.mask_token_id) == 1
    counts = [ids.count(tokenizer.vocab[word]) for word in ("film", "day")]
    assert min(counts) > 5 or text.startswith("{word}")
    for family in ("causal", "encoder"):
        other = load_base_model(str(model_folder(family)))
        with pytest.raises(
            TaskError, match=r"has its label word inside the text, but .* is not a masked LM"
        ):
            scorer_for(other, task, 24, PerturbedBody(other, 0))


def test_model_id_is_of_the_files(model_folder: ModelFolder, tmp_path: Path) -> None:
    folder = model_folder("causal")
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert model_id(tmp_path) == model_id(folder)
    weights = bytearray((tmp_path / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(weights)
    assert model_id(tmp_path) != model_id(folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": "top:4"}, r"top:4.*has only 3 blocks"),
        ({"layers": f"top:{10**20}"}, r"top:1.*has only 3 blocks"),
        ({"layers": "1,7"}, r"1,7.*has only 3 blocks"),
        ({"projections": "q_proj,w_proj"}, r"w_proj.*some of:.*q_proj"),
    ],
)
def test_adapters_that_fit_nothing(
    settings: dict[str, str], message: str, model_folder: ModelFolder
) -> None:
    with pytest.raises(ModelError, match=message):
        assembled(model_folder("causal"), **settings)


def test_label_words_that_do_not_suit_the_model(model_folder: ModelFolder) -> None:
    with pytest.raises(TaskError, match="do not have different tokens"):
        assembled(model_folder("causal"), ("unheard", "unseen"))
    with pytest.raises(TaskError, match=r"one token.*very bad"):
        assembled(model_folder("masked"), ("very bad", "great"))


def test_folders_that_hold_no_model(model_folder: ModelFolder, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such model folder"):
        load_base_model(str(tmp_path / "missing"))
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_base_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no weights"):
        load_base_model(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="architecture"):
        load_base_model(str(tmp_path))
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_base_model(str(tmp_path), family="causal")
    with pytest.raises(ModelError, match="neither a folder nor a model"):
        load_base_model("nobody/no-such-model")


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_twin_shares_the_weights_and_nothing_else(
    quantization: Any, model_folder: ModelFolder
) -> None:
    if quantization != "none":
        pytest.importorskip("bitsandbytes", reason="needs bitsandbytes")
    base = load_base_model(str(model_folder("causal")), quantization=quantization)
    copy_sharing_weights = base.copy_sharing_weights()
    weights = [
        {w.data_ptr() for w in b.network.state_dict().values()}
        for b in (base, copy_sharing_weights)
    ]
    assert weights[0] == weights[1]
    inject(copy_sharing_weights, AdapterSettings(layers="top:1"), 2)
    names = [{name for name, _ in b.network.named_modules()} for b in (base, copy_sharing_weights)]
    assert names[0] < names[1]


def test_a_model_may_advise_what_to_adapt(model_folder: ModelFolder, tmp_path: Path) -> None:
    folder = tmp_path / "advising"
    shutil.copytree(model_folder("causal"), folder)
    config = json.loads((folder / "config.json").read_text())
    for advice, asked, expected in (
        (["up_proj"], "auto", {"up_proj"}),
        (["up_proj"], "k_proj", {"k_proj"}),
        (None, "auto", {"q_proj", "v_proj"}),
    ):
        (folder / "config.json").write_text(json.dumps(config | {"adapter_projections": advice}))
        base = load_base_model(str(folder))
        layout = inject(base, AdapterSettings(layers="top:1", projections=asked), 2).layout
        assert {tensor.name.rpartition(".")[2] for tensor in layout.tensors} == expected


@pytest.mark.parametrize("advice", ["up_proj", ["gone"], [3]])
def test_advice_that_cannot_be_followed(
    advice: Any, model_folder: ModelFolder, tmp_path: Path
) -> None:
    folder = tmp_path / "advising"
    shutil.copytree(model_folder("causal"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"adapter_projections": advice}))
    with pytest.raises(ModelError, match=r"adapter[_.]projections"):
        inject(load_base_model(str(folder)), AdapterSettings(layers="top:1"), 2)
