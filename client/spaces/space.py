"""What every space has: a float state in a fixed order, and scores at θ, θ + ε·z and θ − ε·z.

A space is where MeZO moves (Malladi et al. 2023, sections 2.1 and 3). Its d elements lie in one
flattened order; directions are those of `shared.directions` in that order, drawn chunk by chunk, so
that a direction of a whole model never lies in memory. All arithmetic on the state is elementwise
float32, each operation rounded by itself: nothing in the size of a chunk, the number of threads or
the instruction set can change a bit.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shared.directions import BOTH_SIDES, DIRECTION_BITS, MAX_DIRECTION, Distribution
from shared.errors import ModelError
from shared.layout import Layout
from shared.model.lora_fa import Adapter, Perturbations, PerturbedAdapters
from shared.model.replay_torch import draw_directions
from shared.replay import Backend

Kind = Literal["full", "lora", "lora-fa", "prefix"]
Run = Callable[[PerturbedAdapters], NDArray[np.float32]]
"""Evaluates a forward engine at the points it is given: [P, …] of what is wanted."""

Move = Callable[[int, int], None]
"""Moves θ from an element on, so many of them."""

CPU_CHUNK, DEVICE_CHUNK = 2**19, 2**24
"""Elements of a direction that exist at a time: what stays in caches, or what fills a GPU."""
NO_SEEDS = np.zeros(0, np.uint64)


@dataclass(frozen=True)
class SpaceTensor:
    """A trained tensor by its name and shape."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


class Space(ABC):
    """A float state θ in a model, and ways to move it and to score around it.

    Attributes:
        kind: which of the spaces.
        tensors: what is trained, in the order in which it is flattened.
        size: d.
        adapter: what a forward engine of this space is made with.
        distribution: of the directions.
        state: the type in which θ is kept.
        drifts: whether θ itself is perturbed and restored, which leaves rounding behind in it.
        portable: whether θ begins with the same bits on every machine.
    """

    kind: Kind
    state = "float32"
    drifts = False
    portable = True

    def __init__(
        self,
        tensors: Sequence[SpaceTensor],
        adapter: Adapter,
        device: torch.device,
        backend: Backend,
        distribution: Distribution,
    ) -> None:
        self.tensors, self.adapter, self.distribution = tuple(tensors), adapter, distribution
        self.size = sum(tensor.size for tensor in tensors)
        self._device, self._backend = device, backend
        if not 0 < self.size <= MAX_DIRECTION:
            raise ModelError(
                f"space = {self.kind}: {self.size:,} elements cannot be trained; "
                f"a direction has 1 to {MAX_DIRECTION:,}"
            )

    @abstractmethod
    def values(self, first: int, count: int) -> Tensor:
        """Elements first … first + count − 1 of θ, float32 [count]; not to be changed."""

    @abstractmethod
    def assign(self, first: int, values: Tensor) -> None:
        """Set elements of θ, from `first` on, to float32 [count]."""

    @abstractmethod
    def evaluate(
        self,
        run: Run,
        seeds: NDArray[np.uint64] = NO_SEEDS,
        epsilon: float = 0.0,
        signs: tuple[int, ...] = BOTH_SIDES,
    ) -> NDArray[np.float32]:
        """Run a forward engine at θ ± ε·z of every seed, or at θ itself.

        Args:
            run: is handed points of the engine that was made with `adapter`, the only ones that
                it may be evaluated at, once or several times.
            seeds: uint64 [q], of the directions; none means θ itself.
            epsilon: ε.
            signs: +1 and −1, or in adapters that stand side by side one of them.

        Returns:
            float32 [2q, …], θ + ε·z of every seed and then θ − ε·z of every seed, or of one sign
            [q, …], or [1, …] at θ.
        """

    def add(self, first: int, change: Tensor) -> None:
        """θ ← θ + change on elements from `first` on.

        Args:
            first: the first element.
            change: float32 [count].
        """
        self.assign(first, self.values(first, len(change)) + change)

    def retrace(self, seeds: NDArray[np.uint64], epsilon: float, first: int, count: int) -> None:
        """Do to elements of θ what evaluating at these seeds does: nothing, unless it drifts."""
        if self.drifts:
            for seed in seeds:
                for stands, to in pairwise((0.0, epsilon, -epsilon, 0.0)):
                    self._shift(int(seed), stands, to, first, count)

    def _shift(self, seed: int, stands: float, to: float, first: int, count: int) -> None:
        """From θ + stands·z to θ + to·z, in place, on some elements."""
        self.add(first, self.direction(seed, first, count) * (to - stands))

    def in_parts(self, move: Move) -> None:
        """Have a move made on all of θ, part by part, or put off until a part is at hand."""
        for first, count in self.chunks():
            move(first, count)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """First element and length of each of the parts in which θ is worked on."""
        chunk = CPU_CHUNK if self._device.type == "cpu" else DEVICE_CHUNK
        for first in range(0, self.size, chunk):
            yield first, min(chunk, self.size - first)

    def direction(self, seed: int, first: int, count: int) -> Tensor:
        """Elements of a direction on the model's device, float32 [count].

        Args:
            seed: 64 bits.
            first: a multiple of `WHOLE_BLOCKS`.
            count: how many.
        """
        seeds = np.array([seed], np.uint64)
        z = draw_directions(self._backend, seeds, count, self.distribution, first, self._device)[0]
        return z.to(torch.float32) * 2.0**-DIRECTION_BITS

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of θ as a copy: its name, and float32 [shape]."""
        first = 0
        for tensor in self.tensors:
            yield tensor.name, self.values(first, tensor.size).clone().view(tensor.shape)
            first += tensor.size

    def digest(self) -> bytes:
        """SHA-256 of names, shapes and the little-endian float32 bytes of θ, 32 bytes."""
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
    """A space in which the model stands at one point at a time."""

    @abstractmethod
    def _sides(self, seed: int, epsilon: float) -> Generator[PerturbedAdapters]:
        """Put the model at θ + ε·z, then at θ − ε·z; θ is as before at the end, or nearly."""

    @abstractmethod
    def _center(self) -> AbstractContextManager[PerturbedAdapters]:
        """The model stands at θ."""

    def evaluate(
        self,
        run: Run,
        seeds: NDArray[np.uint64] = NO_SEEDS,
        epsilon: float = 0.0,
        signs: tuple[int, ...] = BOTH_SIDES,
    ) -> NDArray[np.float32]:
        """Run a forward engine at one point after the other, both of a direction in turn."""
        check_both_sides(signs)
        if not len(seeds):
            with self._center() as perturbations:
                return run(perturbations)
        found: list[NDArray[np.float32]] = []
        for seed in seeds:
            # Closed, so that θ is as before also when `run` fails.
            with closing(self._sides(int(seed), epsilon)) as sides:
                found += [run(perturbations) for perturbations in sides]
        return np.concatenate([*found[::2], *found[1::2]])


class FlatSpace(Space):
    """A small space: θ is one float32 vector beside the model, and so are the points around it.

    Args:
        theta: float32 [d] on the model's device, where θ begins.
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
        """A view."""
        return self._theta[first : first + count]

    def assign(self, first: int, values: Tensor) -> None:
        """In place."""
        self._theta[first : first + len(values)] = values

    def _around(self, seed: int, epsilon: float) -> tuple[Tensor, Tensor]:
        """θ + ε·z and θ − ε·z as vectors of their own."""
        step = self.direction(seed, 0, self.size) * epsilon
        return self._theta + step, self._theta - step


def check_both_sides(signs: tuple[int, ...]) -> None:
    """Refuse one side alone where a space stands at one point at a time.

    Raises:
        ValueError: if it is asked for.
    """
    if signs != BOTH_SIDES:
        raise ValueError("a space that stands at one point at a time tries both sides")


def no_adapter() -> tuple[Adapter, Perturbations]:
    """For engines of a model without adapters in it: an empty adapter, and its only point."""
    nothing = Layout((), 1, 1.0, 0, "gaussian")
    return Adapter(nothing, 0), Perturbations(nothing, torch.zeros(0))
