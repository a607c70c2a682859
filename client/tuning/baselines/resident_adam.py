"""Adam where the weights are: resident training, without offloading."""

from collections.abc import Mapping

import torch
from torch import Tensor

from client.offload.host_adam import MOMENTS


class ResidentAdam:
    """An optimizer whose moments are beside the weights (Kingma & Ba 2014, as torch fuses it).

    Args:
        trained: trained tensors by name.
        learning_rate: η of the first step.
    """

    def __init__(self, trained: Mapping[str, Tensor], learning_rate: float) -> None:
        self._trained = trained
        self._adam = torch.optim.Adam(list(trained.values()), learning_rate, fused=True)

    def begin_pass(self, learning_rate: float | None) -> None:
        """Do nothing, since gradients are summed beside the weights."""

    def finish_step(self, learning_rate: float) -> None:
        """Update the weights by the sum of the gradients, and free it.

        Args:
            learning_rate: η of the step.
        """
        for group in self._adam.param_groups:
            group["lr"] = learning_rate
        self._adam.step()
        self._adam.zero_grad()

    def tensors(self) -> dict[str, Tensor]:
        """Return the moments by the names that they have in a checkpoint."""
        return {
            f"{moment}.{name}": state[moment]
            for name, tensor in self._trained.items()
            if (state := self._adam.state.get(tensor))
            for moment in MOMENTS
        }

    def restore(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Continue with the moments of a checkpoint.

        Args:
            tensors: tensors by name, as `tensors` has returned them.
            steps: steps taken before.
        """
        for name, tensor in self._trained.items():
            if f"{MOMENTS[0]}.{name}" in tensors:
                moments = {key: tensors[f"{key}.{name}"].to(tensor.device) for key in MOMENTS}
                count = torch.tensor(float(steps), device=tensor.device)
                self._adam.state[tensor] = {"step": count} | moments
