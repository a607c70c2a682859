"""Updates made of scalars: SGD, momentum and Adam from a history of (seeds, projected gradients).

The gradient estimate of a step is ĝ = Σ g_j·z_j / n, and z_j is a function of its seed. So moments
need not be kept: they can be recomputed from the history, chunk by chunk (MeZO, section 2.2 and
appendix B.2). They may also be held in memory; both give the same bits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client.spaces.space import Space
from shared.errors import TrainingError

NEGLIGIBLE = 2.0**-24
"""The share of a moment's weight that may be dropped: half a unit in the last place of float32."""


@dataclass(frozen=True, eq=False)
class Step:
    """What a step is made of.

    Attributes:
        seeds: uint64 [n], of the directions.
        gradients: float32 [n], their projected gradients.
        learning_rate: η, a float32.
        epsilon: ε of the points that were tried.

    Raises:
        TrainingError: if a number is not finite.
    """

    seeds: NDArray[np.uint64]
    gradients: NDArray[np.float32]
    learning_rate: float
    epsilon: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.gradients).all() and np.isfinite(self.learning_rate)):
            raise TrainingError(
                "a projected gradient or the learning rate is not finite; lower learning-rate or "
                "epsilon, or check the model's weights"
            )

    def gradient(self, space: Space, first: int, count: int) -> Tensor:
        """Elements of ĝ = Σ (g_j / n)·z_j, summed in the order of the seeds: float32 [count]."""
        total = torch.zeros(())
        shares = self.gradients / np.float32(len(self.gradients))
        for seed, share in zip(self.seeds, shares, strict=True):
            total = space.direction(int(seed), first, count) * float(share) + total
        return total


@dataclass(frozen=True)
class SGD:
    """θ ← θ − η·ĝ (MeZO, definition 2)."""

    memory = 0
    """K, the steps after which what a step weighs is negligible; 0 if only the last counts."""

    def moments(self) -> "Moments":
        """The last gradient."""
        return _Average(0.0, 1.0)


@dataclass(frozen=True)
class Momentum:
    """m ← β·m + ĝ; θ ← θ − η·m."""

    beta: float = 0.9

    def __post_init__(self) -> None:
        _check_decay("beta", self.beta)

    @property
    def memory(self) -> int:
        """K, the first number with βᴷ ≤ 2⁻²⁴."""
        return _memory(self.beta)

    def moments(self) -> "Moments":
        """m."""
        return _Average(self.beta, 1.0)


@dataclass(frozen=True)
class Adam:
    """m̂ and v̂, bias-corrected averages of ĝ and ĝ²; θ ← θ − η·m̂ / (√v̂ + ε)."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        _check_decay("beta1", self.beta1)
        _check_decay("beta2", self.beta2)

    @property
    def memory(self) -> int:
        """K of the slower average."""
        return _memory(max(self.beta1, self.beta2))

    def moments(self) -> "Moments":
        """m and v."""
        return _AdamMoments(self)


class _Average:
    """m ← β·m + share·ĝ, with the sum of the weights beside it."""

    def __init__(self, beta: float, share: float) -> None:
        self._beta, self._share = beta, share
        self.value, self.weight = torch.zeros(()), 0.0

    def take(self, gradient: Tensor) -> None:
        """Go on by one step with its ĝ, float32 [count]."""
        self.value = self.value * self._beta + gradient * self._share
        self.weight = self.weight * self._beta + self._share

    def descent(self) -> Tensor:
        """What −η is multiplied by, float32 [count]."""
        return self.value


class _AdamMoments:
    """The weights of both averages sum to 1 − βᵗ, Adam's bias corrections."""

    def __init__(self, update: Adam) -> None:
        self._first = _Average(update.beta1, 1 - update.beta1)
        self._second = _Average(update.beta2, 1 - update.beta2)
        self._epsilon = update.epsilon

    def take(self, gradient: Tensor) -> None:
        """Go on by one step with its ĝ, float32 [count]."""
        self._first.take(gradient)
        self._second.take(gradient * gradient)

    def descent(self) -> Tensor:
        """What −η is multiplied by, float32 [count]."""
        # By the inverse: dividing by a number is that on some devices and a division on others.
        first = self._first.value * (1 / self._first.weight)
        second = self._second.value * (1 / self._second.weight)
        return first / (second.sqrt() + self._epsilon)


Update = SGD | Momentum | Adam
"""How a gradient estimate becomes a step."""
Moments = _Average | _AdamMoments
"""Moments of some elements, of the steps since some step."""


def _memory(beta: float) -> int:
    return max(1, math.ceil(math.log(NEGLIGIBLE) / math.log(beta))) if beta else 1


def _check_decay(name: str, beta: float) -> None:
    if not 0 <= beta < 1:
        raise TrainingError(f"{name} = {beta:g}: a decay must be at least 0 and less than 1")


def window_start(step: int, memory: int) -> int:
    """The step with which the moments of a step begin.

    Windows begin at multiples of K only, so that consecutive steps share them: a step sees the
    last K to 2K steps, or all.

    Args:
        step: counted from 0.
        memory: K.
    """
    return max(0, (step // memory - 1) * memory) if memory else step


class _Windows:
    """The moments of some elements for all windows that the step under way belongs to."""

    def __init__(self, update: Update, step: int) -> None:
        self._update, self._step = update, step
        self._moments: dict[int, Moments] = {}

    def take(self, gradient: Tensor) -> None:
        """Go on by one step with its ĝ, float32 [count]."""
        memory = self._update.memory
        start = window_start(self._step, memory)
        if not memory or self._step % memory == 0:
            self._moments[self._step] = self._update.moments()
        self._moments = {begin: own for begin, own in self._moments.items() if begin >= start}
        for moments in self._moments.values():
            moments.take(gradient)
        self._step += 1

    def descent(self) -> Tensor:
        """Of the last step: what −η is multiplied by, float32 [count]."""
        return self._moments[min(self._moments)].descent()


class Descent:
    """Moves a space step by step.

    Attributes:
        space: what is moved.
        history: the steps taken.
    """

    def __init__(self, space: Space, update: Update, hold_moments: bool = False) -> None:
        """Nothing is moved yet.

        Args:
            space: where its steps begin.
            update: how a gradient estimate becomes a step.
            hold_moments: keep the moments of all elements from step to step, instead of making
                them anew from the history in every step; the bits are the same.
        """
        self.space, self.history = space, list[Step]()
        self._update = update
        self._held: dict[int, _Windows] | None = {} if hold_moments else None

    def step(self, step: Step) -> None:
        """Take a step whose points were tried in this space just now."""
        self._take([step], retrace=False)

    def replay(self, steps: Sequence[Step]) -> None:
        """Take steps that were tried some other time, to the same bits."""
        self._take(steps, retrace=True)

    def _take(self, steps: Sequence[Step], retrace: bool) -> None:
        before = len(self.history)

        def move(first: int, count: int) -> None:
            windows = self._windows(first, count, before)
            for step in steps:
                if retrace:
                    self.space.repeat_perturbations(step.seeds, step.epsilon, first, count)
                windows.take(step.gradient(self.space, first, count))
                self.space.add(first, windows.descent() * -step.learning_rate)
            if self._held is not None:
                self._held[first] = windows

        self.space.update_all(move)
        self.history += steps

    def _windows(self, first: int, count: int, before: int) -> _Windows:
        """Moments of some elements, of so many steps of the history."""
        if self._held is not None and first in self._held:
            return self._held[first]
        begin = window_start(before, self._update.memory)
        windows = _Windows(self._update, begin)
        for step in self.history[begin:before]:
            windows.take(step.gradient(self.space, first, count))
        return windows
