"""Adam on the host, for compressed or full gradients.

Kingma & Ba, "Adam: a method for stochastic optimization" (2014), computed by torch's fused kernel.
The weights are on the accelerator, so the kernel changes a tensor of zeros, which becomes the
update.
"""

import torch
from torch import Tensor
from torch.optim.adam import adam

BETAS, EPSILON = (0.9, 0.999), 1e-8
MOMENTS = ("exp_avg", "exp_avg_sq")
"""Names of first and second moment in a checkpoint, as in torch."""


class HostAdam:
    """A layer's Adam moments in host memory, and the computation of updates from them.

    Attributes:
        moments: first and second moment, float32 [shape].
        steps: number of updates computed.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.moments = (torch.zeros(shape), torch.zeros(shape))
        self.steps = 0

    def update(self, gradient: Tensor, learning_rate: float) -> Tensor:
        """Take a step and return the update −η·m̂ / (√v̂ + ε), to be added to the weights.

        Args:
            gradient: gradient of the step, float32 [shape], on the CPU.
            learning_rate: η.

        Returns:
            float32 [shape], bit for bit the change that torch's fused Adam makes to weights of 0.
        """
        change = torch.zeros_like(gradient)
        first, second = self.moments
        adam(
            [change],
            [gradient],
            [first],
            [second],
            [],
            [torch.tensor(float(self.steps))],
            fused=True,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=learning_rate,
            weight_decay=0.0,
            eps=EPSILON,
            maximize=False,
        )
        self.steps += 1
        return change

    def move(self, left: Tensor | None, right: Tensor | None) -> None:
        """Project the moments to another subspace (LSP-Offload, algorithm 2).

        M ← L·M·Rᵀ and V ← L²·V·(R²)ᵀ, where L = PᵀP_old and R = QᵀQ_old, squared elementwise. The
        moments are changed in place.

        Args:
            left: L, float32 [s, s]; None means the identity.
            right: R, float32 [s, s]; None means the identity.
        """
        first, second = self.moments
        if left is not None:
            first, second = left @ first, left.square() @ second
        if right is not None:
            first, second = first @ right.T, second @ right.square().T
        for kept, moved in zip(self.moments, (first, second), strict=True):
            kept.copy_(moved)
