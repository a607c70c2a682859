"""Short texts that share a row have the same losses as in separate rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tiny_models import ARCHITECTURES, save_tokenizer

from samara.client.forward.body import PerturbedBody
from samara.client.forward.resident import ResidentForward
from samara.client.forward.rows import Rows, pack
from samara.client.forward.streamed import make_forward_engine
from samara.client.forward.trunk_cache import make_trunk_cache
from samara.shared.model.loading import BaseModel, load_base_model
from samara.shared.model.lora_fa import inject
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.scorers import GenerationScorer, Prompt, scorer_for
from samara.shared.protocol.directions import directions
from samara.shared.settings.sections import AdapterSettings
from samara.shared.tasks.kinds import GenerationTask
from samara.shared.tasks.objectives import negative_log_likelihood

ModelFolder = Callable[[str], Path]
TEXTS = GenerationTask(kind="generation", name="t", text="{answer}", label="text", tokens=24)
WORDS = ("film", "day", "meal", "walk", "good", "bad", "warm", "awful")
LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=9)
EPSILON, QUERIES = 0.25, 2


class Rig:
    """A causal model with adapters, whose passes are packed."""

    def __init__(self, folder: Path, layers: str, cached: bool = True) -> None:
        self.base: BaseModel = load_base_model(str(folder))
        with torch.inference_mode():
            scorer = scorer_for(self.base, TEXTS, 64, PerturbedBody(self.base, 0))
        assert isinstance(scorer, GenerationScorer)
        adapter = inject(self.base, AdapterSettings(layers=layers, rank=2), scorer.labels)
        cache = make_trunk_cache(self.base, adapter.first_block, 2**20 if cached else 0)
        self.scorer, self.layout = scorer, adapter.layout
        self.engine = make_forward_engine(self.base, adapter, scorer, False, cache)
        self.rows: list[int] = []
        self.base.body.register_forward_pre_hook(self._note_rows, with_kwargs=True)

    def _note_rows(self, _: object, __: object, called: dict[str, Any]) -> None:
        """Record the rows of a pass; the head also calls the body, with ids alone."""
        if any(called.get(name) is not None for name in ("attention_mask", "position_ids")):
            self.rows.append(len(called["input_ids"]))

    def prompts(self, lengths: list[int]) -> list[Prompt]:
        rng = np.random.default_rng(lengths)
        texts = [" ".join(rng.choice(WORDS, length)) for length in lengths]
        return [self.scorer.prompt("", [text]) for text in texts]

    def perturbations(self) -> Perturbations:
        center = np.random.default_rng(1).normal(0, 0.5, self.layout.size).astype(np.float32)
        z = directions(np.arange(QUERIES, dtype=np.uint64), self.layout.size, "gaussian")
        return Perturbations.from_arrays(self.layout, center, z, EPSILON)


@pytest.fixture(scope="module", params=[("all", True), ("top:1", True), ("top:2", False)], ids=str)
def rig(request: pytest.FixtureRequest, model_folder: ModelFolder) -> Rig:
    return Rig(model_folder("causal"), *request.param)


@given(LENGTHS)
def test_sequences_lie_beside_each_other_in_rows_of_the_longest(lengths: list[int]) -> None:
    taken: set[tuple[int, int]] = set()
    for length, (row, first) in zip(lengths, places := pack(lengths), strict=True):
        tokens = {(row, position) for position in range(first, first + length)}
        assert first + length <= max(lengths)
        assert not tokens & taken
        taken |= tokens
    rows = {place.row for place in places}
    assert rows == set(range(len(rows)))
    # First fit leaves at most one row half empty.
    assert len(rows) <= 1 + 2 * sum(lengths) / max(lengths)


@given(LENGTHS)
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
def test_the_loss_of_a_packed_batch_is_that_of_its_texts_one_by_one(
    rig: Rig, lengths: list[int]
) -> None:
    """Losses, predicted tokens and the whole batch's loss are equal under every perturbation."""
    prompts, perturbations = rig.prompts(lengths), rig.perturbations()
    rig.rows.clear()
    together = rig.engine.scores(perturbations, prompts)
    packed = Rows.of(rig.base, [prompt.sequences[0] for prompt in prompts], packed=True)
    assert rig.rows[-1] == len(packed.ids)
    alone = np.concatenate([rig.engine.scores(perturbations, [one]) for one in prompts], axis=1)
    np.testing.assert_allclose(together[..., 0], alone[..., 0], atol=5e-5)
    np.testing.assert_allclose(together[..., 1], alone[..., 1], atol=1e-6)
    zeros = np.zeros(len(prompts), np.int64)
    one_by_one = [negative_log_likelihood(alone[:, [i]], zeros[:1]) for i in range(len(prompts))]
    whole = negative_log_likelihood(together, zeros)
    np.testing.assert_allclose(whole, np.mean(one_by_one, axis=0), atol=5e-5)


def test_packing_saves_rows(rig: Rig) -> None:
    prompts = rig.prompts([20, 3, 4, 5, 6])
    rig.rows.clear()
    rig.engine.scores(rig.perturbations(), prompts)
    assert rig.rows[-1] == 2


def test_a_streamed_pass_is_packed_to_the_same_bits(model_folder: ModelFolder) -> None:
    rig = Rig(model_folder("causal"), "top:2")
    prompts, perturbations = rig.prompts([20, 3, 4, 5, 6]), rig.perturbations()
    base = load_base_model(str(model_folder("causal")))
    with torch.inference_mode():
        scorer = scorer_for(base, TEXTS, 64, PerturbedBody(base, 0))
    adapter = inject(base, AdapterSettings(layers="top:2", rank=2), scorer.labels)
    cache = make_trunk_cache(base, adapter.first_block, 2**20)
    streamed = make_forward_engine(base, adapter, scorer, True, cache)
    np.testing.assert_array_equal(
        streamed.scores(perturbations, prompts), rig.engine.scores(perturbations, prompts)
    )


def bloom(vocabulary: int) -> Any:
    """A model whose positions follow from the padding, so that no position can restart in a row."""
    return transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=vocabulary, hidden_size=32, n_layer=3, n_head=4)
    )


@pytest.mark.parametrize(
    ("name", "packs"), [("GPT-2", True), ("GPT-NeoX", True), ("OPT", False), ("BLOOM", False)]
)
def test_models_that_cannot_be_packed_are_padded(name: str, packs: bool, tmp_path: Path) -> None:
    build = bloom if name == "BLOOM" else ARCHITECTURES[name][1]
    torch.manual_seed(0)
    build(save_tokenizer(tmp_path, "causal")).save_pretrained(tmp_path)
    base = load_base_model(str(tmp_path))
    with torch.inference_mode():
        body = PerturbedBody(base, 0, packs=True)
        assert body._can_pack is packs
        sequences = [tuple(range(6, 6 + length)) for length in (12, 3, 4, 5)]
        supervised = [tuple(range(len(sequence))) for sequence in sequences]
        together = body(sequences, 1, supervised, pack=True)
        for hidden, sequence in zip(together, sequences, strict=True):
            (alone,) = body([sequence])
            torch.testing.assert_close(hidden[: len(sequence)], alone, atol=1e-5, rtol=1e-4)


def test_clients_that_share_a_pass_are_not_packed(model_folder: ModelFolder) -> None:
    rig = Rig(model_folder("causal"), "all")
    prompts = rig.prompts([9, 9])
    center = torch.zeros(2, rig.layout.size)
    rig.rows.clear()
    rig.engine.scores(Perturbations(rig.layout, center), prompts)
    assert rig.rows == [2]
    assert isinstance(rig.engine, ResidentForward)
