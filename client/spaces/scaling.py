"""Scaling of directions by D, which makes MeZO's variance- and expectation-modified estimates.

Malladi et al. (2023), appendices B.3 and B.4: θ is perturbed by ε·D⁻¹·z, and the estimate is the
projected gradient times D·z (definition 6, unbiased) or times z (definition 7, an estimate of
D⁻¹·∇L). D = diag(d) has one value d per group of parameters.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Modification = Literal["variance", "expectation"]
_EMBEDDING = re.compile(r"emb|wte|wpe")


@dataclass(frozen=True)
class ScalingPlan:
    """The kind of a run's modified estimates, and the steps at which D is computed.

    Attributes:
        modify: variance or expectation. For the variance, D scales perturbations and estimates; for
            the expectation, only perturbations.
        groups: number of parameter groups.
        interval: number of steps between computations of D; 0 computes it once.
    """

    modify: Modification
    groups: int
    interval: int = 0

    def finds_anew(self, step: int) -> bool:
        """Return whether D is computed before the step with a given index, counted from 0."""
        return step % self.interval == 0 if self.interval else step == 0


@dataclass(frozen=True, eq=False)
class Scaling:
    """The factors by which each group of parameters scales a direction z.

    Attributes:
        perturbation: float32 [groups], factors for perturbing θ.
        update: float32 [groups], factors for the estimate; None if all are 1.
    """

    perturbation: NDArray[np.float32]
    update: NDArray[np.float32] | None = None

    @classmethod
    def by(cls, d: NDArray[np.float32], modify: Modification) -> Self:
        """Return the factors of definition 6 (variance) or 7 (expectation).

        Args:
            d: float32 [groups], positive.
            modify: variance or expectation.
        """
        return cls(np.float32(1) / d, d if modify == "variance" else None)

    @classmethod
    def of_one(cls, group: int, groups: int) -> Self:
        """Return factors that set a direction to zero outside one group (proposition 1)."""
        return cls(np.eye(groups, dtype=np.float32)[group])


def scaling_by(plan: ScalingPlan | None, d: NDArray[np.float32] | None) -> Scaling | None:
    """Return the factors of a step with the given d, float32 [groups]; None without a d."""
    return None if plan is None or d is None else Scaling.by(d, plan.modify)


class ParameterGroups:
    """The groups of a space's parameters: one per layer, one for embeddings and one for the head.

    The first number in a tensor's name is its layer. Tensors without a number belong to the
    embeddings if ``emb``, ``wte`` or ``wpe`` is in their names, otherwise to the head.

    Attributes:
        names: name of every group, in the order of its first element.

    Args:
        tensors: name and number of elements of every tensor, in their order.
    """

    def __init__(self, tensors: Sequence[tuple[str, int]]) -> None:
        own = [group_name(name) for name, _ in tensors]
        self.names = tuple(dict.fromkeys(own))
        self._indices = [self.names.index(name) for name in own]
        self._ends = np.cumsum([size for _, size in tensors])

    def parts(self, first: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield (group, length) for the parts of a range of elements, split at group boundaries."""
        index = int(np.searchsorted(self._ends, first, side="right"))
        while count:
            length = min(count, int(self._ends[index]) - first)
            yield self._indices[index], length
            first, count, index = first + length, count - length, index + 1

    def spread(self, factors: NDArray[np.float32], first: int, count: int) -> Tensor:
        """Return the factor of every element, float32 [count].

        Args:
            factors: float32 [groups].
            first: index of the first element.
            count: number of elements.
        """
        groups, lengths = zip(*self.parts(first, count), strict=True)
        return torch.from_numpy(np.repeat(factors[list(groups)], lengths))


def group_name(tensor: str) -> str:
    """Return the name of a tensor's group: ``layer 3``, ``embeddings`` or ``head``."""
    if layer := re.search(r"(?:^|\.)(\d+)\.", tensor):
        return f"layer {layer[1]}"
    return "embeddings" if _EMBEDDING.search(tensor) else "head"
