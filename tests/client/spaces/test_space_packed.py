"""Short texts that share a row have the same losses as in separate rows, in every space."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from streams import Shape
from transformers import AutoModelForCausalLM, DynamicCache

from samara.client.forward.streamed import make_forward_engine
from samara.client.spaces.full import FullSpace
from samara.client.spaces.head import HeadSpace
from samara.client.spaces.low_rank import LoRAFASpace, LoRASpace
from samara.client.spaces.peft_adapter import DoRASpace, VeRASpace
from samara.client.spaces.prefix import PrefixSpace
from samara.client.spaces.space import NO_SEEDS, Space
from samara.client.streaming.loading import load_model
from samara.shared.model.loading import BaseModel
from samara.shared.model.perturbations import Perturbations, PerturbedAdapters
from samara.shared.model.scorers import GenerationScorer, Prompt, Scorer, scorer_for
from samara.shared.protocol.replay_numba import NumbaBackend
from samara.shared.settings.sections import AdapterSettings, ModelSettings
from samara.shared.tasks.kinds import GenerationTask

BACKEND = NumbaBackend(1)
SEEDS = np.array([3, 5], np.uint64)
TASK = GenerationTask(kind="generation", name="t", text="{answer}", label="text", tokens=24)
TEXTS = ("the film was not very good . a warm day", "a day", "kind", "the meal was cold !", "bad")
TOP = AdapterSettings(layers="top:2", rank=2)
KINDS = ("lora-fa", "lora", "dora", "vera", "prefix", "random prefix", "network", "head", "full")
SHAPES = [
    "Llama",
    *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("Qwen", "GPT-NeoX", "OPT")),
]
PREFIX_TOKENS = 3


def space_in(base: BaseModel, kind: str) -> Space:
    """A space whose θ is not at its start."""
    space: Space
    match kind:
        case "lora-fa":
            space = LoRAFASpace(base, TOP, 1, BACKEND)
        case "lora":
            space = LoRASpace(base, TOP, 1, BACKEND)
        case "dora":
            space = DoRASpace(base, TOP, BACKEND)
        case "vera":
            space = VeRASpace(base, TOP, BACKEND)
        case "head":
            space = HeadSpace(base, BACKEND)
        case "full":
            space = FullSpace(base, BACKEND)
        case _:
            width, at_random = 8 * (kind == "network"), kind == "random prefix"
            space = PrefixSpace(
                base, PREFIX_TOKENS, 7, BACKEND, random_start=at_random, width=width
            )
    change = np.random.default_rng(0).normal(0, 0.1, space.size).astype(np.float32)
    space.assign(0, space.values(0, space.size) + torch.from_numpy(change))
    return space


class Packed:
    """A language model with a space in it, which packs texts into shared rows if that is exact.

    Attributes:
        rows: number of rows of every pass so far.
    """

    def __init__(self, folder: Path, kind: str, streamed: bool = False) -> None:
        loaded = load_model(ModelSettings(path=str(folder), stream="disk" if streamed else "off"))
        self.base = loaded.base
        self.stream = loaded.make_stream(self.base)
        self.scorer: Scorer = scorer_for(self.base, TASK, 40, lambda _: torch.empty(0))
        assert isinstance(self.scorer, GenerationScorer)
        self.space = space_in(self.base, kind)
        self.engine = make_forward_engine(self.base, self.space.adapter, self.scorer, streamed)
        self.rows: list[int] = []
        self.base.body.register_forward_pre_hook(self._note_rows, with_kwargs=True)

    def _note_rows(self, _: object, __: object, called: dict[str, Any]) -> None:
        """Record the rows of a pass; the head also calls the body, with ids alone."""
        if any(called.get(name) is not None for name in ("attention_mask", "position_ids")):
            self.rows.append(len(called["input_ids"]))

    def prompts(self) -> list[Prompt]:
        return [self.scorer.prompt("", [text]) for text in TEXTS]

    def scores(
        self, prompts: list[Prompt], seeds: NDArray[np.uint64] = NO_SEEDS
    ) -> NDArray[np.float32]:
        def score(adapters: PerturbedAdapters) -> NDArray[np.float32]:
            return self.engine.scores(adapters, prompts)

        return self.space.evaluate(score, seeds, 0.25)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_packed_batch_has_the_scores_of_its_texts_one_by_one(
    shape: str, kind: str, shape_folder: Shape
) -> None:
    packed = Packed(shape_folder(shape, False), kind)
    prompts = packed.prompts()
    for seeds in (NO_SEEDS, SEEDS):
        together = packed.scores(prompts, seeds)
        alone = np.concatenate([packed.scores([one], seeds) for one in prompts], axis=1)
        np.testing.assert_allclose(together, alone, atol=1e-4)


def test_streamed_texts_behind_a_prefix_have_the_scores_of_resident_ones(
    shape_folder: Shape,
) -> None:
    folder = shape_folder("Llama", False)
    resident, streamed = (Packed(folder, "random prefix", way) for way in (False, True))
    for seeds in (NO_SEEDS, SEEDS):
        expected = resident.scores(resident.prompts(), seeds)
        found = streamed.scores(streamed.prompts(), seeds)
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(("kind", "shares"), [("prefix", False), ("full", True)])
def test_rows_are_shared_but_not_behind_a_prefix(
    kind: str, shares: bool, shape_folder: Shape
) -> None:
    packed = Packed(shape_folder("Llama", False), kind)
    packed.scores(packed.prompts())
    assert (packed.rows[-1] < len(TEXTS)) is shares


@pytest.mark.parametrize("shape", SHAPES)
def test_the_loss_behind_a_prefix_is_that_of_transformers(shape: str, shape_folder: Shape) -> None:
    folder = shape_folder(shape, False)
    packed = Packed(folder, "random prefix")
    prompts, space = packed.prompts(), packed.space
    assert isinstance(space, PrefixSpace)
    prefix = space.keys_and_values(Perturbations(space.layout, space.values(0, space.size)))
    network = AutoModelForCausalLM.from_pretrained(folder).eval()
    found = packed.scores(prompts)[0, :, 0]
    for prompt, own in zip(prompts, found, strict=True):
        cache = DynamicCache()
        for layer in range(len(prefix) // 2):
            cache.update(prefix[2 * layer], prefix[2 * layer + 1], layer)
        ids = torch.tensor(prompt.sequences)
        with torch.inference_mode():
            logits = network(input_ids=ids, past_key_values=cache).logits[0]
        likelihoods = logits.log_softmax(1)[list(prompt.supervised[0])]
        expected = likelihoods.gather(1, torch.tensor(prompt.targets[0])[:, None]).mean()
        assert own == pytest.approx(float(expected), abs=1e-4)
