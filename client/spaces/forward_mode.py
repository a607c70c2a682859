"""Forward-mode differentiation: a loss and its derivative along a direction, in one pass.

Malladi et al. (2023), section 2.2 and appendix D: z·∇L is a Jacobian-vector product, computed along
with the forward pass. Forward mode keeps no activations for a backward pass, but the whole
direction is in memory.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel


def derivative_along(
    loss: Callable[[Tensor], Tensor], theta: Tensor, direction: Tensor
) -> tuple[float, float]:
    """Return the loss at θ and its derivative along a direction.

    Args:
        loss: function of θ that returns a scalar.
        theta: float32 [d].
        direction: float32 [d].
    """
    # Fused attention kernels do not support forward mode.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        value, derivative = torch.func.jvp(loss, (theta,), (direction,))[:2]
    return float(value), float(derivative)


def network_derivative_along(
    loss: Callable[[], Tensor], network: nn.Module, direction: Mapping[str, Tensor]
) -> tuple[float, float]:
    """Return a network's loss and its derivative along a direction of all parameters.

    Args:
        loss: function that runs the network, or parts of it, and returns a scalar.
        network: network whose parameters are differentiated.
        direction: a tensor for every parameter, by name.
    """
    whole = _Running(network, loss)
    parameters = {name: parameter.detach() for name, parameter in network.named_parameters()}

    def loss_at(own: dict[str, Tensor]) -> Tensor:
        named = {f"network.{name}": value for name, value in own.items()}
        result: Tensor = torch.func.functional_call(whole, named)
        return result

    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        value, derivative = torch.func.jvp(loss_at, (parameters,), (dict(direction),))[:2]
    return float(value), float(derivative)


class _Running(nn.Module):
    """A module whose forward pass computes a loss with a network, as `functional_call` needs it."""

    def __init__(self, network: nn.Module, loss: Callable[[], Tensor]) -> None:
        super().__init__()
        self.network, self._loss = network, loss

    def forward(self) -> Tensor:
        """Return the loss under the network's current parameters."""
        return self._loss()
