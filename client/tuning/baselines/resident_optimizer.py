"""Adam or SGD on the device of the weights, without offloading."""

from collections.abc import Mapping

import torch
from torch import Tensor

from samara.client.offload.accelerator import Accelerator
from samara.client.offload.host_adam import MOMENTS
from samara.client.offload.stored_tensors import stored_moments


class ResidentOptimizer:
    """A torch optimizer on the weights' device: Adam, or SGD without momentum.

    Args:
        trained: trained tensors by name.
        learning_rate: η of the first step.
        kind: torch optimizer (Adam: Kingma & Ba 2014).
    """

    def __init__(
        self,
        trained: Mapping[str, Tensor],
        learning_rate: float,
        kind: type[torch.optim.Adam] | type[torch.optim.SGD] = torch.optim.Adam,
    ) -> None:
        self._trained = trained
        self._optimizer = kind(list(trained.values()), learning_rate, fused=True)

    def begin_pass(self, learning_rate: float | None) -> None:
        """Do nothing, because torch accumulates the gradients in the weights' `grad`."""

    def finish_step(self, learning_rate: float) -> None:
        """Update the weights by the accumulated gradients, and free the gradients.

        Args:
            learning_rate: η of the step.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad()

    def tensors(self) -> dict[str, Tensor]:
        """Return Adam's moments by their names in a checkpoint; SGD has none."""
        return {
            f"{moment}.{name}": state[moment]
            for name, tensor in self._trained.items()
            if (state := self._optimizer.state.get(tensor))
            for moment in MOMENTS
            if moment in state
        }

    def restore(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Continue with the moments of a checkpoint.

        Args:
            tensors: tensors by name, as returned by `tensors`.
            steps: number of steps taken before the checkpoint.

        Raises:
            ValueError: if a tensor is missing or has another shape or dtype.
        """
        for name, tensor in self._trained.items():
            moments = stored_moments(tensors, name, tuple(tensor.shape))
            if moments is not None:
                state = dict(zip(MOMENTS, (m.to(tensor.device) for m in moments), strict=True))
                count = torch.tensor(float(steps), device=tensor.device)
                self._optimizer.state[tensor] = {"step": count} | state

    def hold(self, accelerator: Accelerator) -> None:
        """Count the moments' bytes in the accelerator's memory.

        Raises:
            DeviceError: if the moments do not fit into an emulated accelerator's memory.
        """
        for state in self._optimizer.state.values():
            accelerator.hold(value for value in state.values() if value is not None)
