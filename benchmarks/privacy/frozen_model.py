"""A base model whose outputs and gradients are looked at, and which is not trained."""

import numpy as np
import torch
from numpy.typing import NDArray

from samara.client.forward.body import PerturbedBody
from samara.client.forward.resident import ResidentForward
from samara.client.streaming.loading import load_model
from samara.shared.model.lora_fa import inject
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.scorers import scorer_for
from samara.shared.sections import AdapterSettings, ModelSettings
from samara.shared.tasks.catalog import load_task


class Frozen:
    """A base model that is looked at and not trained.

    Args:
        task: of the texts, with two labels.
        model: whose encoder it is.
        adapter: whose numbers' gradients are wanted.
    """

    def __init__(self, task: str, model: ModelSettings, adapter: AdapterSettings) -> None:
        self._base = load_model(model).base
        body = PerturbedBody(self._base, 0)
        with torch.no_grad():
            self._scorer = scorer_for(self._base, load_task(task), model.max_length, body)
        inside = inject(self._base, adapter, self._scorer.labels)
        self.layout = inside.layout
        top = PerturbedBody(self._base, inside.first_block)
        self._forward = ResidentForward(inside, self._scorer, top)

    def gradient(self, text: str) -> NDArray[np.float64]:
        """Return the gradient of the labels' score difference, and the difference, [d + 1]."""
        numbers = torch.zeros(self.layout.size, requires_grad=True)
        prompt = self._scorer.prompt(text)
        one, other = self._forward.score_pass(Perturbations(self.layout, numbers), [prompt])[0, 0]
        (other - one).backward()
        assert numbers.grad is not None
        return np.append(numbers.grad.numpy(), float(other.detach() - one.detach()))
