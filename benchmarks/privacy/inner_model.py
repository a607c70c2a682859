"""Adapters inside a sentence encoder: passes through the model, and what is linear in them.

Around the base the difference of two labels' scores is linear in the trained numbers; its gradients
are taken once (`InnerModel.linear_texts`). What a state is worth is measured by passes through the
model (`InnerModel.texts_at`).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.privacy.linear_texts import Floats, Texts
from samara.client.training.model_runtime import load_run
from samara.shared.config import TRUNK_CACHES, RunConfig
from samara.shared.frames.instructions import Split
from samara.shared.model.perturbations import Perturbations

MICRO_BATCH = 64
TRUNK_BYTES = 2**30
"""The memory for what the layers below the adapters make of every text."""


class InnerModel:
    """An encoder with LoRA-FA adapters, and the texts of a task with two labels.

    Args:
        settings: task, data and model of a run, and its adapters.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        own = {"threads": 1, "memory-budget": TRUNK_BYTES // TRUNK_CACHES, "data.clients": 1}
        self._runtime, source = load_run(RunConfig.of({**settings, **own}, "benchmark"))
        data = source.share_of(0, 1)
        self._texts = {split: data.tokenized(split) for split in Split}
        self.size = self._runtime.layout.size
        """The number of trained numbers, d."""

    def texts_at(self, split: Split, numbers: Floats) -> Texts:
        """Return the texts of a split at a state, without gradients.

        Args:
            split: split of the data.
            numbers: trained numbers, float64 [d].
        """
        labels, margins = self._texts[split].labels, np.zeros(len(self._texts[split].labels))
        center = torch.from_numpy(numbers.astype(np.float32))
        with torch.inference_mode():
            for chosen in self._micro_batches(split, np.arange(len(labels))):
                margins[chosen] = self._margins(split, chosen, center).numpy()
        return Texts(np.zeros((len(labels), self.size)), margins, labels)

    def linear_texts(self, split: Split, file: Path) -> Texts:
        """Return the texts of a split as linear ones around the base; a file keeps them."""
        if not file.exists():
            labels = self._texts[split].labels
            gradients, margins = self._gradients(split)
            np.savez(file, gradients=gradients, margins=margins, labels=labels)
        with np.load(file) as read:
            return Texts(read["gradients"].astype(np.float64), read["margins"], read["labels"])

    def _gradients(self, split: Split) -> tuple[NDArray[np.float32], Floats]:
        """Return gradients of all margins at the base, float32 [n, d], and margins, float64 [n]."""
        texts = np.arange(len(self._texts[split].labels))
        gradients, margins = np.zeros((len(texts), self.size), np.float32), np.zeros(len(texts))
        for chosen in self._micro_batches(split, texts):
            centers = torch.zeros(len(chosen), self.size, requires_grad=True)
            found = self._margins(split, chosen, centers)
            (gradient,) = torch.autograd.grad(found.sum(), centers)
            gradients[chosen] = gradient.numpy()
            margins[chosen] = found.detach().numpy()
        return gradients, margins

    def _margins(
        self, split: Split, chosen: NDArray[np.int64], center: torch.Tensor
    ) -> torch.Tensor:
        """Return the differences of the two labels' scores, float32 [n]."""
        prompts = [self._texts[split].prompts[index] for index in chosen.tolist()]
        perturbations = Perturbations(self._runtime.layout, center)
        scores = self._runtime.forward.score_pass(perturbations, prompts)[0]
        return (scores[:, 1] - scores[:, 0]).float()

    def _micro_batches(
        self, split: Split, chosen: NDArray[np.int64]
    ) -> Iterator[NDArray[np.int64]]:
        """Yield places in `chosen` of texts of similar length, so that there is little padding."""
        prompts = self._texts[split].prompts
        lengths = [len(prompts[index].sequences[0]) for index in chosen.tolist()]
        order = np.argsort(lengths, kind="stable")
        for start in range(0, len(order), MICRO_BATCH):
            yield order[start : start + MICRO_BATCH]
