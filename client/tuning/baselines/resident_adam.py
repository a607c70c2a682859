"""Adam where the weights are: resident training, without offloading."""

from collections.abc import Mapping

import torch
from torch import Tensor

from client.offload.accelerator import Accelerator
from client.offload.host_adam import MOMENTS
from client.offload.stored_tensors import stored_moments


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

        Raises:
            ValueError: if a tensor is missing or does not fit.
        """
        for name, tensor in self._trained.items():
            moments = stored_moments(tensors, name, tuple(tensor.shape))
            if moments is not None:
                state = dict(zip(MOMENTS, (m.to(tensor.device) for m in moments), strict=True))
                count = torch.tensor(float(steps), device=tensor.device)
                self._adam.state[tensor] = {"step": count} | state

    def hold(self, accelerator: Accelerator) -> None:
        """Count the moments in the accelerator's memory.

        Raises:
            DeviceError: if they do not fit into an emulated accelerator's memory.
        """
        for state in self._adam.state.values():
            accelerator.hold(state.values())
