"""Spaces: sets of parameters trained by zeroth-order optimization, each with a float state θ.

A space is the set of parameters that MeZO updates (Malladi et al. 2023, sections 2.1 and 3). Its d
elements have one flattened order. Directions come from `samara.shared.protocol.directions` in that
order. They are computed in chunks, so that a whole model's direction is never in memory at once.
All arithmetic on θ is elementwise float32, and each operation is rounded separately. The bits
therefore do not depend on chunk size, number of threads or instruction set.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samara.client.spaces.forward_mode import derivative_along
from samara.client.spaces.scaling import ParameterGroups, Scaling, ScalingPlan
from samara.shared.errors import ModelError
from samara.shared.model.lora_fa import Adapter
from samara.shared.model.perturbations import Perturbations, PerturbedAdapters
from samara.shared.model.replay_torch import draw_directions
from samara.shared.protocol.directions import (
    BOTH_SIDES,
    DIRECTION_BITS,
    MAX_DIRECTION,
    Distribution,
)
from samara.shared.protocol.layout import ADAPTER_GROUP, Layout
from samara.shared.protocol.layout import Tensor as LayoutTensor
from samara.shared.protocol.replay import Backend

ScoreFunction = Callable[[PerturbedAdapters], NDArray[np.float32]]
"""A function that runs a forward engine under P perturbations, and returns an array [P, …]."""

LossFunction = Callable[[PerturbedAdapters], Tensor]
"""A function that runs a forward engine with given adapters, and returns the loss as a scalar."""

RangeUpdate = Callable[[int, int], None]
"""A function that takes first and count, and updates elements first … first + count − 1 of θ."""

CPU_CHUNK, ACCELERATOR_CHUNK = 2**19, 2**24
"""Number of a direction's elements in memory at once. A CPU's chunk fits its caches. A GPU's chunk
is large enough to occupy the GPU."""
NO_SEEDS = np.zeros(0, np.uint64)


@dataclass(frozen=True)
class SpaceTensor:
    """The name and shape of a trained tensor."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


class Space(ABC):
    """A float state θ of a model, which can be updated, and scored under perturbations.

    Attributes:
        kind: name of the space.
        tensors: trained tensors, in the order in which they are flattened.
        size: number d of elements.
        adapter: adapter with which to build a forward engine for this space.
        distribution: distribution of the directions.
        state: name of the data type in which θ is stored.
        drifts: whether θ itself is perturbed and restored, which leaves rounding errors in θ.
        signs: signs of a step's perturbations; rebuilding a drifting θ repeats them.
        groups: groups of parameters with a common scaling factor in D.
        scaling_plan: modification of this run's estimates by D; None without a D.
        scaling: factors on the directions of perturbations; None if all are 1.
        portable: whether the initial θ has the same bits on every machine.
    """

    kind: str
    state = "float32"
    drifts = False
    portable = True
    signs: tuple[int, ...] = BOTH_SIDES
    scaling_plan: ScalingPlan | None = None
    scaling: Scaling | None = None

    def __init__(
        self,
        tensors: Sequence[SpaceTensor],
        adapter: Adapter,
        torch_device: torch.device,
        backend: Backend,
        distribution: Distribution,
    ) -> None:
        self.tensors, self.adapter, self.distribution = tuple(tensors), adapter, distribution
        self.size = sum(tensor.size for tensor in tensors)
        self.groups = ParameterGroups([(tensor.name, tensor.size) for tensor in tensors])
        self._torch_device, self._backend = torch_device, backend
        if not 0 < self.size <= MAX_DIRECTION:
            raise ModelError(
                f"space = {self.kind}: {self.size:,} elements cannot be trained, because a "
                f"direction has 1 to {MAX_DIRECTION:,} elements; choose another space"
            )

    @abstractmethod
    def values(self, first: int, count: int) -> Tensor:
        """Return elements first … first + count − 1 of θ, float32 [count], read-only."""

    @abstractmethod
    def assign(self, first: int, values: Tensor) -> None:
        """Set elements first … first + len(values) − 1 of θ to float32 values."""

    @abstractmethod
    def evaluate(
        self,
        score: ScoreFunction,
        seeds: NDArray[np.uint64] = NO_SEEDS,
        epsilon: float = 0.0,
        signs: tuple[int, ...] = BOTH_SIDES,
    ) -> NDArray[np.float32]:
        """Run a forward engine at θ ± ε·z for every seed, or at θ itself.

        Args:
            score: function called one or more times with perturbations for the engine built with
                `adapter`. The perturbations are valid only during the call.
            seeds: uint64 [q], seeds of the directions; empty for θ itself.
            epsilon: size ε of the perturbations.
            signs: (+1, −1), or one of the two.

        Returns:
            float32 [2q, …], θ + ε·z of every seed and then θ − ε·z of every seed; [q, …] for one
            sign; [1, …] for θ itself.
        """

    def derivative(self, loss: LossFunction, seed: int) -> tuple[float, float]:
        """Return L(θ) and the derivative of L along a direction, by forward-mode differentiation.

        Args:
            loss: function called once, inside the differentiation.
            seed: seed of the direction; the space's `scaling` applies.

        Raises:
            NotImplementedError: if θ is streamed; the settings' validation already refuses this.
        """
        raise NotImplementedError(f"{self.kind}: a streamed θ has no forward-mode derivative")

    def add(self, first: int, change: Tensor) -> None:
        """Set θ ← θ + change on the elements from `first` on.

        Args:
            first: index of the first element.
            change: float32 [count].
        """
        self.assign(first, self.values(first, len(change)) + change)

    def repeat_perturbations(
        self,
        seeds: NDArray[np.uint64],
        epsilon: float,
        first: int,
        count: int,
        scaling: Scaling | None = None,
    ) -> None:
        """Reproduce on a range of θ the rounding errors left by perturbing with these seeds.

        The method does nothing unless the space drifts.

        Args:
            seeds: uint64 [q], seeds of the directions.
            epsilon: size ε of the perturbations.
            first: index of the first element.
            count: number of elements.
            scaling: factors on the directions at that step.
        """
        if self.drifts:
            for seed in seeds:
                offsets = (0.0, *(sign * epsilon for sign in self.signs), 0.0)
                for current, target in pairwise(offsets):
                    self._shift(int(seed), current, target, first, count, scaling)

    def _shift(
        self,
        seed: int,
        current: float,
        target: float,
        first: int,
        count: int,
        scaling: Scaling | None,
    ) -> None:
        """Move a range of elements in place from θ + current·z to θ + target·z, with scaled z."""
        self.add(first, self.perturbation(seed, first, count, scaling) * (target - current))

    def update_all(self, update: RangeUpdate) -> None:
        """Apply an update to every range of θ, now or when the range is next in memory."""
        for first, count in self.chunks():
            update(first, count)

    @property
    def chunk(self) -> int:
        """Number of elements of a direction in memory at once."""
        return CPU_CHUNK if self._torch_device.type == "cpu" else ACCELERATOR_CHUNK

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Yield (first element, length) of consecutive ranges that cover θ."""
        for first in range(0, self.size, self.chunk):
            yield first, min(self.chunk, self.size - first)

    def direction(self, seed: int, first: int, count: int) -> Tensor:
        """Return elements of a direction on the model's torch device, float32 [count].

        Args:
            seed: 64 bits.
            first: index of the first element, a multiple of `WHOLE_BLOCKS`.
            count: number of elements.
        """
        seeds = np.array([seed], np.uint64)
        device = self._torch_device
        z = draw_directions(self._backend, seeds, count, self.distribution, first, device)[0]
        return z.to(torch.float32) * 2.0**-DIRECTION_BITS

    def perturbation(self, seed: int, first: int, count: int, scaling: Scaling | None) -> Tensor:
        """Return elements of a direction, multiplied by the scaling's factors for perturbations."""
        z = self.direction(seed, first, count)
        return z if scaling is None else self.scaled(z, scaling.perturbation, first)

    def scaled(self, z: Tensor, factors: NDArray[np.float32] | None, first: int) -> Tensor:
        """Return elements of a direction, multiplied by their groups' factors.

        Args:
            z: float32 [count], or [q, count] of several directions.
            factors: float32 [groups]; None if all are 1.
            first: index of the first element.
        """
        if factors is None:
            return z
        return z * self.groups.spread(factors, first, z.shape[-1]).to(z.device)

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name of every tensor of θ and a copy of its value, float32 [shape]."""
        first = 0
        for tensor in self.tensors:
            yield tensor.name, self.values(first, tensor.size).clone().view(tensor.shape)
            first += tensor.size

    def digest(self) -> bytes:
        """Return the SHA-256 of θ, 32 bytes: names, shapes and little-endian float32 values."""
        whole = hashlib.sha256(self.tensors_hash)
        for first, count in self.chunks():
            whole.update(self.values(first, count).cpu().numpy().astype("<f4").tobytes())
        return whole.digest()

    @property
    def tensors_hash(self) -> bytes:
        """SHA-256 of the tensors' names and shapes in their order, 32 bytes."""
        content = [[tensor.name, *tensor.shape] for tensor in self.tensors]
        return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).digest()


class SequentialSpace(Space):
    """A space whose model computes with one perturbation at a time."""

    @abstractmethod
    def _perturbed(
        self, seed: int, epsilon: float, signs: tuple[int, ...]
    ) -> Generator[PerturbedAdapters]:
        """Yield with the model at θ + s·ε·z for each sign s, and finally restore θ.

        If the space drifts, θ is restored only up to rounding.
        """

    @abstractmethod
    def _unperturbed(self) -> AbstractContextManager[PerturbedAdapters]:
        """Return a context in which the model computes with θ."""

    def evaluate(
        self,
        score: ScoreFunction,
        seeds: NDArray[np.uint64] = NO_SEEDS,
        epsilon: float = 0.0,
        signs: tuple[int, ...] = BOTH_SIDES,
    ) -> NDArray[np.float32]:
        """Run a forward engine under one perturbation at a time; see `Space.evaluate`."""
        if not len(seeds):
            with self._unperturbed() as unperturbed:
                return score(unperturbed)
        results: list[list[NDArray[np.float32]]] = []
        for seed in seeds:
            # Closing restores θ even if `score` fails.
            with closing(self._perturbed(int(seed), epsilon, signs)) as sides:
                results.append([score(perturbed) for perturbed in sides])
        return np.concatenate(
            [scores for of_sign in zip(*results, strict=True) for scores in of_sign]
        )


class FlatSpace(Space):
    """A small space, whose θ and perturbations are float32 vectors outside the model.

    Args:
        theta: float32 [d] on the model's torch device, the initial θ.
    """

    def __init__(
        self,
        tensors: Sequence[SpaceTensor],
        adapter: Adapter,
        theta: Tensor,
        backend: Backend,
        distribution: Distribution,
    ) -> None:
        super().__init__(tensors, adapter, theta.device, backend, distribution)
        self._theta = theta

    def values(self, first: int, count: int) -> Tensor:
        """Return a view of elements of θ, float32 [count]."""
        return self._theta[first : first + count]

    def assign(self, first: int, values: Tensor) -> None:
        """Set elements of θ in place."""
        self._theta[first : first + len(values)] = values

    @abstractmethod
    def computing_with(self, theta: Tensor) -> AbstractContextManager[PerturbedAdapters]:
        """Return a context in which the model computes with a given vector as θ, float32 [d]."""

    def derivative(self, loss: LossFunction, seed: int) -> tuple[float, float]:
        """Return L(θ) and the derivative of L along a direction that is entirely in memory."""

        def loss_at(theta: Tensor) -> Tensor:
            with self.computing_with(theta) as adapters:
                return loss(adapters)

        z = self.perturbation(seed, 0, self.size, self.scaling)
        return derivative_along(loss_at, self._theta, z)

    def _sides(self, seed: int, epsilon: float, signs: tuple[int, ...]) -> Iterator[Tensor]:
        """Yield θ + s·ε·z for every sign s as a new vector, float32 [d]."""
        step = self.perturbation(seed, 0, self.size, self.scaling) * epsilon
        for sign in signs:
            yield self._theta + sign * step


class SequentialFlatSpace(FlatSpace, SequentialSpace):
    """A small space whose model computes with one perturbation at a time."""

    def _perturbed(
        self, seed: int, epsilon: float, signs: tuple[int, ...]
    ) -> Generator[PerturbedAdapters]:
        for theta in self._sides(seed, epsilon, signs):
            with self.computing_with(theta) as adapters:
                yield adapters

    def _unperturbed(self) -> AbstractContextManager[PerturbedAdapters]:
        return self.computing_with(self._theta)


class SharedPassSpace(FlatSpace):
    """A small space, several perturbations of which can share a forward pass.

    Each row of a pass is computed with the tensors of its perturbation, which the adapter names.

    Attributes:
        layout: the tensors of θ as matrices.

    Args:
        theta: float32 [d] on the model's torch device, the initial θ.
    """

    def __init__(
        self,
        tensors: Sequence[SpaceTensor],
        adapter: Adapter,
        layout: Layout,
        theta: Tensor,
        backend: Backend,
    ) -> None:
        super().__init__(tensors, adapter, theta, backend, layout.distribution)
        self.layout = layout

    def evaluate(
        self,
        score: ScoreFunction,
        seeds: NDArray[np.uint64] = NO_SEEDS,
        epsilon: float = 0.0,
        signs: tuple[int, ...] = BOTH_SIDES,
    ) -> NDArray[np.float32]:
        """Run a forward engine once with all perturbations, grouped by its schedule."""
        device = self._torch_device
        if not len(seeds):
            return score(Perturbations(self.layout, self._theta))
        z = draw_directions(self._backend, seeds, self.size, self.distribution, 0, device)
        if self.scaling is not None:
            z = self.scaled(z, self.scaling.perturbation, 0)
        return score(Perturbations(self.layout, self._theta, z, epsilon, signs))

    def computing_with(self, theta: Tensor) -> AbstractContextManager[PerturbedAdapters]:
        """Return a context that provides adapters with a given vector as θ, float32 [d]."""
        return nullcontext(Perturbations(self.layout, theta))


def layout_of(tensors: Sequence[SpaceTensor], distribution: Distribution) -> Layout:
    """Return a layout in which each tensor is a matrix whose columns are its last dimension."""
    matrices = [
        LayoutTensor(t.name, t.size // t.shape[-1], t.shape[-1], ADAPTER_GROUP) for t in tensors
    ]
    return Layout(tuple(matrices), 1, 1.0, 0, distribution)
