"""The label words' rows of a head give the whole head's scores, up to a common constant."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from federations import Settings, loaded
from torch import nn
from tuning import setup_of, small

from samara.client.forward.setup import make_scorer
from samara.shared.model.head import head_logits, keep_rows, separate_rows
from samara.shared.model.loading import BaseModel, load_base_model
from samara.shared.model.scorers import CausalScorer, MaskedScorer, Prompt
from samara.shared.protocol.frames.instructions import Split
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.label_scores import cross_entropy

ModelFolder = Callable[..., Path]


@pytest.fixture(params=["causal", "masked"])
def base(request: pytest.FixtureRequest, model_folder: ModelFolder) -> BaseModel:
    return load_base_model(str(model_folder(request.param)))


def scores_of(base: BaseModel, compares: bool) -> np.ndarray:
    scorer = make_scorer(base, load_task("sst2"), 40, compares)
    assert isinstance(scorer, CausalScorer | MaskedScorer)
    prompts: list[Prompt] = [scorer.prompt(text) for text in ("good film", "a bad day", "meal")]
    lengths = torch.tensor([len(prompt.sequences[0]) for prompt in prompts])
    states = torch.randn(
        (2 * 3, int(lengths.max()), base.hidden_size), generator=torch.Generator().manual_seed(1)
    )
    with torch.inference_mode():
        return scorer.scores(states, lengths, prompts).numpy()


def test_rows_give_the_differences_of_likelihoods(base: BaseModel) -> None:
    whole, rows = scores_of(base, False), scores_of(base, True)
    assert rows.dtype == np.float32
    assert (whole < 0).all()
    assert not np.allclose(whole, rows)  # they are logits
    np.testing.assert_allclose(np.diff(rows), np.diff(whole), atol=1e-5)
    labels = np.array([0, 1, 1])
    np.testing.assert_allclose(cross_entropy(rows, labels), cross_entropy(whole, labels), atol=1e-6)


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_head_of_words_has_their_logits_and_leaves_the_embeddings(
    is_tied: bool, base: BaseModel
) -> None:
    embeddings, words = base.network.get_input_embeddings(), [7, 5]
    if is_tied:
        base.network.get_output_embeddings().weight = embeddings.weight
    hidden = torch.randn((3, base.hidden_size), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = head_logits(base, hidden)[:, words]
        keep_rows(base, words)
        found = head_logits(base, hidden)
    torch.testing.assert_close(found, expected)
    assert base.network.get_input_embeddings() is embeddings
    assert len(embeddings.weight) == base.vocabulary


def test_the_head_computes_no_other_logits(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    usual = nn.functional.linear

    def counted(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> object:
        made.append(len(weight))
        return usual(x, weight, bias)

    make_scorer(base, load_task("sst2"), 40, True)  # its trial uses the whole head
    scorer = make_scorer(base, load_task("sst2"), 40, True)
    prompts = [scorer.prompt("good film")]
    lengths = torch.tensor([len(prompts[0].sequences[0])])
    states = torch.zeros((1, int(lengths[0]), base.hidden_size))
    monkeypatch.setattr(nn.functional, "linear", counted)
    scorer.scores(states, lengths, prompts)
    assert 2 in made
    assert base.vocabulary not in made


def test_a_head_that_knows_its_vocabulary_is_used_whole(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [5, 7]
    assert separate_rows(base, words)
    usual, added = base.network.forward, torch.arange(float(base.vocabulary))

    def adding(*args: object, **kwargs: object) -> object:
        output = usual(*args, **kwargs)
        output.logits = output.logits + added
        return output

    monkeypatch.setattr(base.network, "forward", adding)
    assert not separate_rows(base, words)


def test_a_head_that_mixes_words_is_used_whole(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = base.network.forward

    def mixing(*args: object, **kwargs: object) -> object:
        output = usual(*args, **kwargs)
        output.logits = output.logits * output.logits.shape[-1]
        return output

    monkeypatch.setattr(base.network, "forward", mixing)
    assert not separate_rows(base, [5, 7])


@pytest.mark.parametrize(
    ("objective", "by_rows"),
    [
        ("cross-entropy", True),
        ("profiled-cross-entropy", True),
        ("metric", True),
        ("likelihood", False),
    ],
)
def test_a_likelihood_keeps_the_whole_vocabulary(
    objective: str, by_rows: bool, model_folder: ModelFolder, data_file: Path, tmp_path: Path
) -> None:
    settings = small(model_folder("causal"), data_file, tmp_path / "run")
    scores, labels = [], np.array([0, 1])
    for one in (objective, "likelihood"):
        setup = setup_of(settings, objective=one, optimizer="mezo", space="lora")
        prompts = setup.splits["train"].prompts[:2]
        forward, evaluate = setup.base_engine()
        scores.append(evaluate(lambda adapters, f=forward, p=prompts: f.scores(adapters, p)))  # type: ignore[misc]
    own, whole = scores
    assert np.array_equal(own, whole) != by_rows
    np.testing.assert_allclose(cross_entropy(own, labels), cross_entropy(whole, labels), atol=1e-6)


def test_steps_have_the_gradients_of_the_whole_head(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for _ in range(2):
        runtime, data = loaded(settings, adapter__layers="top:1")
        examples = data.share_of(0, 3).tokenized(Split.TRAIN)
        weights = np.zeros(runtime.layout.element_count, np.float32)
        center = runtime.perturbation(None)
        assert center.layout.element_count == len(weights)
        found.append(
            runtime.forward.loss_gradients(center, examples.prompts, examples.labels[None])
        )
        monkeypatch.setattr("samara.client.training.model_runtime.only_compares", lambda _: False)
    (loss, gradient), (whole_loss, whole_gradient) = found
    np.testing.assert_allclose(loss, whole_loss, atol=1e-6)
    assert np.abs(gradient).max() > 1e-3
    np.testing.assert_allclose(gradient, whole_gradient, atol=1e-4 * np.abs(gradient).max())
