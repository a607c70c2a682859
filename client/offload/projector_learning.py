"""Learning of sparse projectors from a gradient (LSP-Offload, section 4.1, algorithm 2).

The loss is ‖P·Pᵀ·G·Q·Qᵀ − G‖² + γ·(‖P‖² + ‖Q‖²) as a function of the values at fixed positions. The
gradient G is scaled to ‖G‖ = 1, so that γ and the bias mean the same for every layer. The paper
minimizes the loss by SGD. SGD diverges when it starts from random values, where the first term is
hundreds of times ‖G‖². Here the random values are first scaled by the factor that minimizes the
first term. Adam then learns from the scaled values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from samara.client.offload.kernels import compress, decompress, project
from samara.client.offload.projectors import ProjectorPair, SparseProjector

_RATE = 0.1
"""Adam's learning rate, in units of the root mean square of the values."""


@dataclass(frozen=True)
class LearnedProjectors:
    """The result of learning projectors.

    Attributes:
        projectors: P and Q.
        bias: relative bias on the gradient used for learning.
        steps: number of learning steps taken.
    """

    projectors: ProjectorPair
    bias: float
    steps: int


def relative_bias(projectors: ProjectorPair, gradient: Tensor) -> float:
    """Return ‖P·Pᵀ·G·Q·Qᵀ − G‖ / ‖G‖, Frobenius norms; 0 for a gradient of zeros.

    The relative bias is α in the paper's assumption 3. The paper's algorithm 2 instead compares
    a squared norm with a norm.

    Args:
        projectors: P and Q.
        gradient: G, float32 [m, n].
    """
    norm = gradient.norm()
    if norm == 0:
        return 0.0
    approximation = decompress(projectors, compress(projectors, gradient))
    return float((approximation - gradient).norm() / norm)


@torch.no_grad()
def learn_projectors(
    projectors: ProjectorPair, gradient: Tensor, threshold: float, gamma: float, most_steps: int
) -> LearnedProjectors:
    """Learn the values of projectors until their bias is below a threshold.

    Args:
        projectors: P and Q with random values; a side that is None stays None.
        gradient: G, float32 [m, n], not zero.
        threshold: relative bias below which learning ends.
        gamma: weight γ of the squared norms of P and Q in the loss.
        most_steps: maximum number of steps.

    Returns:
        The projectors with the lowest bias of all steps.
    """
    unit = gradient / gradient.norm()
    projectors = _scaled(projectors, unit)
    parameters = {
        side: projector.values.clone()
        for side, projector in (("left", projectors.left), ("right", projectors.right))
        if projector is not None
    }
    groups = [
        {"params": [values], "lr": _RATE * float(values.square().mean().sqrt())}
        for values in parameters.values()
    ]
    bias, derivatives = _bias_and_derivatives(projectors, unit)
    best, steps = LearnedProjectors(projectors, bias, 0), 0
    adam = torch.optim.Adam(groups, fused=True) if groups else None
    while adam is not None and steps < most_steps and bias >= threshold:
        for side, values in parameters.items():
            values.grad = derivatives[side] + 2 * gamma * values
        adam.step()
        steps += 1
        projectors = _with_values(projectors, parameters)
        bias, derivatives = _bias_and_derivatives(projectors, unit)
        if bias < best.bias:
            best = LearnedProjectors(_with_values(projectors, _copied(parameters)), bias, steps)
    return replace(best, steps=steps)


def _scaled(projectors: ProjectorPair, gradient: Tensor) -> ProjectorPair:
    """Scale projectors by the factor that minimizes their bias on a gradient."""
    approximation = decompress(projectors, compress(projectors, gradient))
    square = approximation.square().sum()
    factor = (approximation * gradient).sum() / square if square > 0 else torch.ones(())
    sides = [side for side in (projectors.left, projectors.right) if side is not None]
    if not sides or factor <= 0:
        return projectors
    scale = factor ** (0.5 / len(sides))
    values = {
        name: side.values * scale
        for name, side in (("left", projectors.left), ("right", projectors.right))
        if side is not None
    }
    return _with_values(projectors, values)


def _with_values(projectors: ProjectorPair, values: Mapping[str, Tensor]) -> ProjectorPair:
    def side(name: str, projector: SparseProjector | None) -> SparseProjector | None:
        return None if projector is None else replace(projector, values=values[name])

    return ProjectorPair(side("left", projectors.left), side("right", projectors.right))


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _bias_and_derivatives(
    projectors: ProjectorPair, gradient: Tensor
) -> tuple[float, dict[str, Tensor]]:
    """Return ‖R‖ and the derivatives of ‖R‖² by the values; R = P·A·Qᵀ − G, A = PᵀGQ.

    With B = PᵀRQ the derivatives are 2·(RQ·Aᵀ + GQ·Bᵀ) and 2·(RᵀP·A + GᵀP·B) at the positions of
    the nonzeros. GQ, GᵀP, RQ and RᵀP are computed once and used for A, B and the derivatives.

    Args:
        projectors: P and Q.
        gradient: G, float32 [m, n], of norm 1.
    """
    left, right = projectors.left, projectors.right
    gq, gp = _project_both(projectors, gradient)
    a = gq if left is None else project(left, gq)
    rest = decompress(projectors, a) - gradient
    rq, rp = _project_both(projectors, rest)
    b = rq if left is None else project(left, rq)
    derivatives = {}
    if left is not None:
        derivatives["left"] = 2 * (rq @ a.T + gq @ b.T).gather(1, left.positions)
    if right is not None:
        derivatives["right"] = 2 * (rp @ a + gp @ b).gather(1, right.positions)
    return float(rest.norm()), derivatives


def _project_both(projectors: ProjectorPair, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return M·Q, [m, s], and Mᵀ·P, [n, s]."""
    left, right = projectors.left, projectors.right
    by_right = matrix if right is None else project(right, matrix.T).T
    by_left = matrix if left is None else project(left, matrix)
    return by_right, by_left.T


def change_of_basis(old: SparseProjector | None, new: SparseProjector | None) -> Tensor | None:
    """Return PᵀP_old, float32 [new s, old s], which projects moments to a new subspace.

    Args:
        old: P_old.
        new: P. None is the identity; `old` must then be None as well, and the result is None.
    """
    if old is None or new is None:
        return None
    return project(new, old.dense())
