"""SGD, momentum and Adam on a space, computed from a history of seeds and projected gradients.

The gradient estimate of a step is ĝ = Σ g_j·z_j / n, and z_j is a function of its seed. So moments
need not be stored: they can be recomputed from the history, chunk by chunk (MeZO, section 2.2 and
appendix B.2). The moments may also be held in memory, which gives the same bits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samara.client.spaces.scaling import Scaling
from samara.client.spaces.space import Space
from samara.shared.errors import TrainingError

NEGLIGIBLE = 2.0**-24
"""Largest fraction of a moment's total weight that may be dropped: half an ulp of float32."""


@dataclass(frozen=True, eq=False)
class UpdateStep:
    """The seeds and scalars of one training step, from which its update can be recomputed.

    Attributes:
        seeds: uint64 [n], seeds of the directions.
        gradients: float32 [n], projected gradients along the directions.
        learning_rate: learning rate η, a float32.
        epsilon: size ε of the perturbations.
        scaling: factors on the directions; None if they are all 1.

    Raises:
        TrainingError: if a number is not finite.
    """

    seeds: NDArray[np.uint64]
    gradients: NDArray[np.float32]
    learning_rate: float
    epsilon: float
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        if not (np.isfinite(self.gradients).all() and np.isfinite(self.learning_rate)):
            raise TrainingError(
                "a projected gradient or the learning rate is not finite; lower learning-rate or "
                "epsilon, or check the model's weights"
            )

    def gradient(self, space: Space, first: int, count: int) -> Tensor:
        """Return a range of elements of ĝ = Σ (g_j / n)·z_j, summed in order of the seeds.

        With a scaling, the elements are multiplied by the scaling's factors of the update.

        Args:
            space: space of the directions.
            first: index of the first element.
            count: number of elements.

        Returns:
            float32 [count].
        """
        total = torch.zeros(())
        coefficients = self.gradients / np.float32(len(self.gradients))
        for seed, coefficient in zip(self.seeds, coefficients, strict=True):
            total = space.direction(int(seed), first, count) * float(coefficient) + total
        return total if self.scaling is None else space.scaled(total, self.scaling.update, first)


@dataclass(frozen=True)
class SGD:
    """The update rule θ ← θ − η·(ĝ + λ·θ) (MeZO, definition 2), with weight decay λ."""

    weight_decay: float = 0.0
    window = 0
    """Number K of steps after which a step's weight in the moments is negligible; 0 if only the
    last step counts."""

    def moments(self) -> "Moments":
        """Return moments that consist of the last gradient alone."""
        return _Average(0.0, 1.0)


@dataclass(frozen=True)
class Momentum:
    """The update rule m ← β·m + ĝ; θ ← θ − η·(m + λ·θ)."""

    beta: float = 0.9
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_decay("beta", self.beta)

    @property
    def window(self) -> int:
        """Number K of steps after which a weight is negligible, the smallest K with βᴷ ≤ 2⁻²⁴."""
        return _window(self.beta)

    def moments(self) -> "Moments":
        """Return the initial moments, m = 0."""
        return _Average(self.beta, 1.0)


@dataclass(frozen=True)
class Adam:
    """The update rule θ ← θ − η·(m̂ / (√v̂ + ε) + λ·θ), with bias-corrected averages m̂ and v̂ of ĝ
    and ĝ² (AdamW; Loshchilov and Hutter, 2019)."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_decay("beta1", self.beta1)
        _check_decay("beta2", self.beta2)

    @property
    def window(self) -> int:
        """Number K of steps after which a weight is negligible in the slower average."""
        return _window(max(self.beta1, self.beta2))

    def moments(self) -> "Moments":
        """Return the initial moments, m = 0 and v = 0."""
        return _AdamMoments(self)


class _Average:
    """A decaying sum m ← β·m + gain·ĝ, with the sum of its weights."""

    def __init__(self, beta: float, gain: float) -> None:
        self._beta, self._gain = beta, gain
        self.value, self.weight = torch.zeros(()), 0.0

    def add(self, gradient: Tensor) -> None:
        """Add the ĝ of the next step, float32 [count]."""
        self.value = self.value * self._beta + gradient * self._gain
        self.weight = self.weight * self._beta + self._gain

    def update(self) -> Tensor:
        """Return the update of θ before the multiplication by −η, float32 [count]."""
        return self.value


class _AdamMoments:
    """The two averages of Adam, whose total weights 1 − βᵗ are Adam's bias corrections."""

    def __init__(self, rule: Adam) -> None:
        self._first = _Average(rule.beta1, 1 - rule.beta1)
        self._second = _Average(rule.beta2, 1 - rule.beta2)
        self._epsilon = rule.epsilon

    def add(self, gradient: Tensor) -> None:
        """Add the ĝ of the next step, float32 [count]."""
        self._first.add(gradient)
        self._second.add(gradient * gradient)

    def update(self) -> Tensor:
        """Return the update of θ before the multiplication by −η, float32 [count]."""
        # Multiply by the inverse, because torch's division by a scalar differs between devices.
        first = self._first.value * (1 / self._first.weight)
        second = self._second.value * (1 / self._second.weight)
        return first / (second.sqrt() + self._epsilon)


UpdateRule = SGD | Momentum | Adam
"""A rule that computes updates of θ from gradient estimates."""
Moments = _Average | _AdamMoments
"""Moments of a range of elements of θ, accumulated from a given step on."""


def _window(beta: float) -> int:
    return max(1, math.ceil(math.log(NEGLIGIBLE) / math.log(beta))) if beta else 1


def _check_decay(name: str, beta: float) -> None:
    if not 0 <= beta < 1:
        raise TrainingError(f"{name} = {beta:g}: a decay must be at least 0 and less than 1")


def window_start(step: int, window: int) -> int:
    """Return the first step whose gradient enters the moments of a given step.

    Windows begin only at multiples of K, so that consecutive steps share a window. Once 2K steps
    are taken, the moments cover the last K to 2K steps; before, they cover all steps.

    Args:
        step: index of the step, from 0.
        window: number of steps K.
    """
    return max(0, (step // window - 1) * window) if window else step


class _Windows:
    """The moments of a range of elements, one for every window that contains the current step."""

    def __init__(self, rule: UpdateRule, step: int) -> None:
        self._rule, self._step = rule, step
        self._moments: dict[int, Moments] = {}

    def add(self, gradient: Tensor) -> None:
        """Add the ĝ of the next step, float32 [count]."""
        window = self._rule.window
        start = window_start(self._step, window)
        if not window or self._step % window == 0:
            self._moments[self._step] = self._rule.moments()
        self._moments = {first: m for first, m in self._moments.items() if first >= start}
        for moments in self._moments.values():
            moments.add(gradient)
        self._step += 1

    def update(self) -> Tensor:
        """Return the last step's update of θ before the multiplication by −η, float32 [count]."""
        return self._moments[min(self._moments)].update()


class Descent:
    """A sequence of update steps on a space.

    Attributes:
        space: space that is updated.
        history: steps taken so far.
    """

    def __init__(self, space: Space, rule: UpdateRule, hold_moments: bool = False) -> None:
        """Start a descent without any steps.

        Args:
            space: space in its initial state.
            rule: rule that computes updates from gradient estimates.
            hold_moments: whether the moments of all elements are held in memory. Otherwise each
                step recomputes them from the history, with the same bits. SGD has no moments
                to hold.
        """
        self.space, self.history = space, list[UpdateStep]()
        self._rule = rule
        self._held: dict[int, _Windows] | None = {} if hold_moments and rule.window else None

    def step(self, step: UpdateStep) -> None:
        """Take a step whose perturbations this space has just evaluated."""
        self._take([step], repeat_perturbations=False)

    def replay(self, steps: Sequence[UpdateStep]) -> None:
        """Take steps that were evaluated earlier, so that the space has the same bits as then."""
        self._take(steps, repeat_perturbations=True)

    def _take(self, steps: Sequence[UpdateStep], repeat_perturbations: bool) -> None:
        before = len(self.history)

        def update(first: int, count: int) -> None:
            windows = self._windows(first, count, before)
            for step in steps:
                if repeat_perturbations:
                    self.space.repeat_perturbations(
                        step.seeds, step.epsilon, first, count, step.scaling
                    )
                windows.add(step.gradient(self.space, first, count))
                change = windows.update()
                if self._rule.weight_decay:
                    change = change + self.space.values(first, count) * self._rule.weight_decay
                self.space.add(first, change * -step.learning_rate)
            if self._held is not None:
                self._held[first] = windows

        self.space.update_all(update)
        self.history += steps

    def _windows(self, first: int, count: int, steps: int) -> _Windows:
        """Return the moments of a range of elements after some first steps of the history.

        Args:
            first: index of the first element.
            count: number of elements.
            steps: number of steps of the history.
        """
        if self._held is not None and first in self._held:
            return self._held[first]
        start = window_start(steps, self._rule.window)
        windows = _Windows(self._rule, start)
        for step in self.history[start:steps]:
            windows.add(step.gradient(self.space, first, count))
        return windows
