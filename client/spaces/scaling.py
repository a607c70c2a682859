"""Directions scaled group by group: D of the variance- and expectation-modified estimates.

Malladi et al. (2023), appendices B.3 and B.4: θ is perturbed by ε·D⁻¹·z, and the estimate is the
projected gradient times D·z (definition 6, unbiased) or times z (definition 7, an estimate of
D⁻¹·∇L). D = diag(d) has one d for every group of parameters.
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
    """The modification of a run's estimates, and the steps in which D is found.

    Attributes:
        modify: what D modifies; for the variance it scales perturbations and estimates, for the
            expectation perturbations alone.
        groups: number of parameter groups.
        interval: number of steps after which D is found anew; 0 if it is found once.
    """

    modify: Modification
    groups: int
    interval: int = 0

    def finds_anew(self, step: int) -> bool:
        """Return whether D is found before a step, whose index counts from 0."""
        return step % self.interval == 0 if self.interval else step == 0


@dataclass(frozen=True, eq=False)
class Scaling:
    """The factors of every group of parameters on a direction z.

    Attributes:
        perturbation: float32 [groups], factors where θ is perturbed.
        update: float32 [groups], factors in the estimate; None if they are all 1.
    """

    perturbation: NDArray[np.float32]
    update: NDArray[np.float32] | None = None

    @classmethod
    def by(cls, d: NDArray[np.float32], modify: Modification) -> Self:
        """Return the factors of definition 6 (variance) or 7 (expectation).

        Args:
            d: float32 [groups], positive.
            modify: what D modifies.
        """
        return cls(np.float32(1) / d, d if modify == "variance" else None)

    @classmethod
    def of_one(cls, group: int, groups: int) -> Self:
        """Return the factors of a direction in one group alone (proposition 1)."""
        return cls(np.eye(groups, dtype=np.float32)[group])


def scaling_by(plan: ScalingPlan | None, d: NDArray[np.float32] | None) -> Scaling | None:
    """Return the scaling of a step whose D has these numbers; None if there is no D."""
    return None if plan is None or d is None else Scaling.by(d, plan.modify)


class ParameterGroups:
    """The groups of a space's elements: a group for each layer, and embeddings and head apart.

    A tensor belongs to the layer of the first number in its name. Of the others, those with
    ``emb``, ``wte`` or ``wpe`` in their names are the embeddings; the rest is the head.

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
        """Yield group and length of consecutive parts of a range of elements."""
        index = int(np.searchsorted(self._ends, first, side="right"))
        while count:
            length = min(count, int(self._ends[index]) - first)
            yield self._indices[index], length
            first, count, index = first + length, count - length, index + 1

    def spread(self, factors: NDArray[np.float32], first: int, count: int) -> Tensor:
        """Return every element's own factor, float32 [count].

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
