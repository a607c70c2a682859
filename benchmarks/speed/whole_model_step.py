"""Steps of other methods on the same rows: MeZO in place on all parameters, and first order.

Between steps, gradients are freed, but an optimizer's moments are kept. An optimizer's first step
therefore allocates all the memory that the method needs.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.speed.in_place_mezo import InPlaceMeZO

Loss = Callable[[], Tensor]
OPTIMIZERS = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}


def mezo_step(
    parameters: Sequence[Tensor], loss: Loss, queries: int, epsilon: float, learning_rate: float
) -> Callable[[], object]:
    """Return a function that takes a MeZO step on parameters in place, with inference's memory.

    Args:
        parameters: parameters to perturb and update.
        loss: function that returns the loss of the current parameters.
        queries: directions of a step.
        epsilon: size ε of the perturbations.
        learning_rate: η.
    """

    def measured_loss() -> float:
        with torch.inference_mode():
            return float(loss())

    mezo = InPlaceMeZO(parameters, measured_loss)
    return lambda: mezo.step(range(queries), epsilon, learning_rate)


def first_order_step(
    parameters: Sequence[Tensor], loss: Loss, optimizer: str, learning_rate: float
) -> Callable[[], object]:
    """Return a function that takes a step along the true gradient.

    The parameters require gradients only during the step.

    Args:
        parameters: leaf tensors to update.
        loss: function that returns the loss of the current parameters, with its graph.
        optimizer: a name in `OPTIMIZERS`.
        learning_rate: η.
    """
    kept = OPTIMIZERS[optimizer](parameters, learning_rate)

    def step() -> None:
        for parameter in parameters:
            parameter.requires_grad_(True)
        loss().backward()  # type: ignore[no-untyped-call]
        kept.step()
        kept.zero_grad()
        for parameter in parameters:
            parameter.requires_grad_(False)

    return step
