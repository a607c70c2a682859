"""Learning of sparse projectors from a gradient (LSP-Offload, section 4.1, algorithm 2).

The loss is ‖P·Pᵀ·G·Q·Qᵀ − G‖² + γ·(‖P‖² + ‖Q‖²) of the values at fixed positions, for a gradient G
that is scaled to ‖G‖ = 1: so γ and the bias mean the same for every layer. The paper minimizes by
SGD, which diverges from the random start, where the first term is some hundred times ‖G‖². Here the
start is scaled to the factor that makes the first term least, and Adam goes on from there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from client.offload.kernels import compress, decompress, project
from client.offload.projectors import ProjectorPair, SparseProjector

_RATE = 0.1
"""Adam's learning rate, in units of the root mean square of the values."""


@dataclass(frozen=True)
class LearnedProjectors:
    """Projectors as they were learned.

    Attributes:
        projectors: P and Q.
        bias: relative bias on the gradient that they were learned from.
        steps: steps of learning taken.
    """

    projectors: ProjectorPair
    bias: float
    steps: int


def relative_bias(projectors: ProjectorPair, gradient: Tensor) -> float:
    """Return ‖P·Pᵀ·G·Q·Qᵀ − G‖ / ‖G‖, Frobenius norms; 0 for a gradient of zeros.

    It is the α of the paper's assumption 3; its algorithm 2 compares a square with a norm there.

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
    """Learn the values of projectors until their bias is under a threshold.

    Args:
        projectors: P and Q with their values at random; sides that are None stay so.
        gradient: G, float32 [m, n], not zero.
        threshold: relative bias below which learning ends.
        gamma: weight γ of the norms.
        most_steps: number of steps after which learning ends in any case.

    Returns:
        The projectors with the lowest bias on the way.
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
    best = LearnedProjectors(projectors, relative_bias(projectors, unit), 0)
    if not (groups and most_steps) or best.bias < threshold:
        return best
    adam = torch.optim.Adam(groups, fused=True)
    for step in range(most_steps):
        gradients = _value_gradients(projectors, unit)
        for side, values in parameters.items():
            values.grad = gradients[side] + 2 * gamma * values
        adam.step()
        projectors = _with_values(projectors, parameters)
        bias = relative_bias(projectors, unit)
        if bias < best.bias:
            best = LearnedProjectors(_with_values(projectors, _copied(parameters)), bias, step + 1)
        if bias < threshold:
            break
    return replace(best, steps=step + 1)


def _scaled(projectors: ProjectorPair, gradient: Tensor) -> ProjectorPair:
    """Scale projectors by the factor that makes the bias on a gradient least."""
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


def _value_gradients(projectors: ProjectorPair, gradient: Tensor) -> dict[str, Tensor]:
    """Return the derivatives of ‖P·A·Qᵀ − G‖², A = PᵀGQ, by the values of P and Q.

    With R = P·A·Qᵀ − G and B = PᵀRQ they are 2·(R·Q·Aᵀ + G·Q·Bᵀ) and 2·(RᵀP·A + GᵀP·B) at the
    positions of the nonzeros.
    """
    left, right = projectors.left, projectors.right
    compressed = compress(projectors, gradient)
    rest = decompress(projectors, compressed) - gradient
    compressed_rest = compress(projectors, rest)
    derivatives = {}
    for name, side, other, turned in (("left", left, right, False), ("right", right, left, True)):
        if side is None:
            continue
        g, r, a, b = (
            matrix.T if turned else matrix
            for matrix in (gradient, rest, compressed, compressed_rest)
        )
        r_other, g_other = (
            matrix if other is None else project(other, matrix.T).T for matrix in (r, g)
        )
        whole = 2 * (r_other @ a.T + g_other @ b.T)
        derivatives[name] = whole.gather(1, side.positions)
    return derivatives


def change_of_basis(old: SparseProjector | None, new: SparseProjector | None) -> Tensor | None:
    """Return PᵀP_old, float32 [new s, old s], with which moments move to a new subspace.

    Args:
        old: P_old.
        new: P; None, with which `old` must be None too, returns None.
    """
    if old is None or new is None:
        return None
    return project(new, old.dense())
