"""MeZO as published: parameters are perturbed in place, one forward pass after another.

Malladi et al., "Fine-tuning language models with just forward passes" (2023), in the form with q
queries that P-RGE restates as its Algorithm 2. P-RGE is measured against this code. Only here are
parameters perturbed in place and restored by subtraction, which leaves rounding errors.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from samara.shared.model.loading import BaseModel
from samara.shared.model.lora_fa import Adapter, LoRAFALinear
from samara.shared.model.perturbations import Perturbations


class InPlaceMeZO:
    """Zeroth-order steps on parameters in place, with noise regenerated from seeds.

    Args:
        parameters: parameters to perturb and update.
        loss: function that returns the loss of the current parameters on the current batch.
    """

    def __init__(self, parameters: Sequence[Tensor], loss: Callable[[], float]) -> None:
        self._parameters, self._loss = parameters, loss
        self._generator = torch.Generator(parameters[0].device)

    def estimate(self, seeds: Sequence[int], epsilon: float) -> list[float]:
        """Return the projected gradient of every seed (Algorithm 2, lines 3–13)."""
        gradients = []
        for seed in seeds:
            self.perturb(seed, epsilon)
            plus = self._loss()
            self.perturb(seed, -2 * epsilon)
            minus = self._loss()
            self.perturb(seed, epsilon)
            gradients.append((plus - minus) / (2 * epsilon))
        return gradients

    def step(self, seeds: Sequence[int], epsilon: float, learning_rate: float) -> list[float]:
        """Estimate the projected gradients, descend along every seed, and return the gradients."""
        gradients = self.estimate(seeds, epsilon)
        for seed, gradient in zip(seeds, gradients, strict=True):
            self.perturb(seed, -learning_rate * gradient / len(seeds))
        return gradients

    def perturb(self, seed: int, scale: float) -> None:
        """Add scale·z(seed) to the parameters, tensor by tensor."""
        self._generator.manual_seed(seed)
        for parameter in self._parameters:
            z = torch.empty_like(parameter).normal_(generator=self._generator)
            parameter.add_(z, alpha=scale)


def lora_parameters(base: BaseModel, perturbations: Perturbations) -> list[Tensor]:
    """Return views of A and B of every adapted layer, the tensors that plain LoRA trains.

    Args:
        base: model with adapters.
        perturbations: the single perturbation under which passes run; it holds the B's.
    """
    parameters = []
    for layer in base.body.modules():
        if isinstance(layer, LoRAFALinear):
            parameters += [layer.a, perturbations.tensor(layer.name)[0]]
    return parameters


def whole_network_loss(
    base: BaseModel,
    adapter: Adapter,
    perturbations: Perturbations,
    ids: Tensor,
    mask: Tensor,
    labels: Tensor,
) -> Tensor:
    """Return the cross-entropy of the token after each sequence, by the network's forward pass.

    The result has a graph if gradients are enabled.

    Args:
        base: causal LM with adapters.
        adapter: the adapters of the model.
        perturbations: a single perturbation.
        ids: int64 [B, S], padded on the right.
        mask: int64 [B, S].
        labels: int64 [B], token ids.
    """
    with adapter.using(perturbations):
        logits = base.network(input_ids=ids, attention_mask=mask).logits
    last = logits[torch.arange(len(ids)), mask.sum(1) - 1].float()
    return torch.nn.functional.cross_entropy(last, labels)
