"""Spaces of parameters in real models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from samara.client.estimators.prge import LossRequest
from samara.client.forward.body import PerturbedBody
from samara.client.forward.grouping import Schedule
from samara.client.forward.resident import ResidentForward
from samara.client.spaces.full import FullSpace
from samara.client.spaces.head import HeadSpace
from samara.client.spaces.low_rank import LoRAFASpace, LoRASpace
from samara.client.spaces.peft_adapter import DoRASpace, VeRASpace
from samara.client.spaces.prefix import PrefixSpace
from samara.client.spaces.space import Space
from samara.shared.model.loading import BaseModel, load_base_model
from samara.shared.model.perturbations import PerturbedAdapters
from samara.shared.model.scorers import scorer_for
from samara.shared.protocol.replay_numba import NumbaBackend
from samara.shared.settings.sections import AdapterSettings
from samara.shared.tasks.kinds import ClassificationTask
from samara.shared.tasks.label_scores import cross_entropy

BACKEND = NumbaBackend(1)


SEEDS = np.array([3, 2**40], np.uint64)


TEXTS = ("the film was good .", "a day", "the meal was not very cold ! a walk", "kind")


LABELS = np.array([1, 0, 0, 1])


TASK = ClassificationTask.model_validate(
    {
        "name": "test",
        "text": "{text}",
        "question": " it was {word} .",
        "words": ["terrible", "great"],
        "labels": [0, 1],
    }
)


BUILD: dict[str, Callable[[BaseModel], Space]] = {
    "full": lambda base: FullSpace(base, BACKEND),
    "full, in place": lambda base: FullSpace(base, BACKEND, keep_copy=False),
    "lora": lambda base: LoRASpace(base, AdapterSettings(layers="top:2"), 2, BACKEND),
    "lora-fa": lambda base: LoRAFASpace(base, AdapterSettings(layers="top:2"), 2, BACKEND),
    "prefix": lambda base: PrefixSpace(base, 3, 7, BACKEND),
    "prefix of a network": lambda base: PrefixSpace(base, 3, 7, BACKEND, width=8),
    "head": lambda base: HeadSpace(base, BACKEND),
}


BY_PEFT: dict[str, Callable[[BaseModel], Space]] = {
    "dora": lambda base: DoRASpace(base, AdapterSettings(layers="top:2"), BACKEND),
    "vera": lambda base: VeRASpace(base, AdapterSettings(layers="top:2"), BACKEND),
}


class Rig:
    """A model with a space in it, and an engine that scores."""

    def __init__(self, folder: Path, kind: str, **loading: Any) -> None:
        self.base: BaseModel = load_base_model(str(folder), **loading)
        with torch.inference_mode():
            self.scorer = scorer_for(self.base, TASK, 40, PerturbedBody(self.base, 0))
        self.space = (BUILD | BY_PEFT)[kind](self.base)
        adapter = self.space.adapter
        body = PerturbedBody(self.base, adapter.first_block)
        self.forward = ResidentForward(adapter, self.scorer, body)
        self.prompts = [self.scorer.prompt(text) for text in TEXTS]

    def run(self, perturbations: PerturbedAdapters) -> NDArray[np.float32]:
        return self.forward.scores(perturbations, self.prompts, Schedule(micro_batch=3))

    def theta(self) -> NDArray[np.float32]:
        return self.space.values(0, self.space.size).numpy().copy()

    def wander(self) -> None:
        """Move θ away from its start, to a point where every number affects the scores."""
        change = np.random.default_rng(0).normal(0, 0.1, self.space.size).astype(np.float32)
        for first, count in self.space.chunks():
            self.space.add(first, torch.from_numpy(change[first : first + count]))

    def losses_of(self, request: LossRequest) -> NDArray[np.float64]:
        def run(perturbations: PerturbedAdapters) -> NDArray[np.float32]:
            return self.forward.scores(perturbations, [self.prompts[i] for i in request.batch])

        scores = self.space.evaluate(run, request.seeds, request.epsilon)
        return cross_entropy(scores, LABELS[request.batch])
