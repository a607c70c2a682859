"""Norms of groups of parameters, from which d in MeZO's definitions 6 and 7 is computed.

In Malladi et al. (2023), appendix B.3, D is a diagonal matrix with blocks of equal d, one per
group. The values of d are gradient norms or parameter norms. Gradient norms are estimated from
losses (proposition 1), or computed by one backward pass.
"""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samara.client.spaces.scaling import Scaling
from samara.client.spaces.space import Space
from samara.shared.errors import TrainingError


def estimate_gradient_norms(
    space: Space,
    seeds: NDArray[np.uint64],
    epsilon: float,
    losses_of: Callable[[NDArray[np.uint64]], NDArray[np.float64]],
) -> NDArray[np.float32]:
    """Estimate the norm of every group's gradient from losses (proposition 1).

    For group ℓ, the estimate is the mean of |L(θ + ε·z_ℓ; B) − L(θ − ε·z_ℓ; B)| / 2ε over its
    directions z_ℓ, which are 0 outside the group. For every group, the estimate's expectation is
    √(2/π) times the norm.

    Args:
        space: space at θ; its scaling is None afterwards.
        seeds: uint64 [groups, k], seeds of the directions of every group.
        epsilon: size ε > 0 of the perturbations.
        losses_of: function that returns the losses along directions, float64 [2k], with + first.

    Returns:
        float32 [groups].
    """
    norms = []
    try:
        for group, own in enumerate(seeds):
            space.scaling = Scaling.of_one(group, len(seeds))
            plus, minus = np.split(losses_of(own), 2)
            norms.append(np.mean(np.abs(plus - minus)) / (2 * epsilon))
    finally:
        space.scaling = None
    return np.array(norms, np.float32)


def parameter_norms(space: Space) -> NDArray[np.float32]:
    """Return the norm of every group of a space's parameters θ, float32 [groups]."""
    return _norms(space, space.values)


def gradient_norms(space: Space, gradient: Tensor) -> NDArray[np.float32]:
    """Return the norm of every group of a gradient, float32 [groups].

    Args:
        space: space that defines the groups.
        gradient: float32 [d], in the order of θ.
    """
    return _norms(space, lambda first, count: gradient[first : first + count])


def backward_gradient(network: nn.Module, losses: Iterable[Tensor]) -> Tensor:
    """Return the gradient of a sum of losses, computed by backward passes, float32 [d].

    Args:
        network: network whose parameters, in order, are θ.
        losses: losses, each computed when it is requested.
    """
    parameters = list(network.parameters())
    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        for loss in losses:
            loss.backward()  # type: ignore[no-untyped-call]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        return torch.cat([gradient.reshape(-1) for gradient in gradients])
    finally:
        for parameter in parameters:
            parameter.requires_grad_(False)
            parameter.grad = None


def _norms(space: Space, values: Callable[[int, int], Tensor]) -> NDArray[np.float32]:
    squares = np.zeros(len(space.groups.names))
    for first, count in space.chunks():
        whole = values(first, count)
        start = 0
        for group, length in space.groups.parts(first, count):
            part = whole[start : start + length].double()
            squares[group] += float(part.square().sum())
            start += length
    return np.sqrt(squares).astype(np.float32)


def d_of(norms: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the d of every group, computed from the groups' norms, float32 [groups].

    A group with norm 0, on which no loss depends, gets d = 1.

    Args:
        norms: float32 [groups].

    Raises:
        TrainingError: if a norm is not finite.
    """
    if not np.isfinite(norms).all():
        raise TrainingError(
            "the norm of a group of parameters is not finite; lower epsilon, or check the model's "
            "weights"
        )
    return np.where(norms > 0, norms, np.float32(1))
