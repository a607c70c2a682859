"""A step size that needs no search: by what the steps themselves add to the loss.

Moving by Σ c·z along random directions adds ½·tr(H)·Σ c² to the loss, whatever the c's are: that is
the second-order term of the zeroth-order descent lemma (Malladi et al., 2023, section 4; Ghadimi
and Lan, 2013), the price of the noise in an estimate with d ≫ q. tr(H) is the mean of
(L₊ + L₋ − 2·L₀)/ε² over the directions that are tried anyway (Hutchinson, 1990), and Σ c² is known
exactly. What is bought with it is the fall of the loss. In a run of T equal steps the gain grows as
η·T and the price as η²·T, so at the best η the price is as large as the gain that is left after it.
So the step size is chosen to spend a share of the gain so far, or at first of the loss at the
start, have_equal_row_counts over the steps that are left (docs/step-size.md).

All is a pure fold over what steps or rounds told: whoever has the record has the step size.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shared.directions import Differences

WARM_UP = 32
"""Directions whose curvature is known before the first move."""
WARM_UP_SHARE = 0.1
"""Of all steps: the warm-up ends after so many at the latest, if anything was measured."""
FIRST_SHARE = 0.04
"""Of the loss at the start: what may be spent before a gain shows."""
GAIN_SHARE = 0.5
"""Of the gain so far, less its standard error: what may be spent in all."""
LEAST_SHARE = 0.1
"""Of the budget: what is spread over the steps that are left although all is spent."""
LEAST_LEFT = 0.1
"""Of all steps: the budget is spread at least over so many, also at the end."""
MOST_AT_ONCE = 0.01
"""Of the loss at the start: most that one step, or one client in a round, may add by noise."""
MEMORY = 50
"""Steps that averages reach back, a tenth of a usual run."""
REACH = 30.0
"""Times ε: farthest that one step, or one client in a round, moves, as √Σ c²; curvature is known
from points that are ε away, and is a guess much farther out."""
OUTLIER = 4.0
"""Projected gradients are clipped to so many times their root mean square."""
CURVATURE_SHARE = 16
"""A loss L₀ per so many directions, or losses L₋ in one of so many steps."""
RISE = 3.0
"""Standard errors of the lowest smoothed loss, and of the present one, that are no rise."""
LEAST_RISE = 0.1
"""Of the loss at the start: less is no rise."""
AT_ONCE = 4.0
"""Times the loss at the start: a single loss that much above the lowest is a rise."""
LEAST_SCALE = 1.0
"""Least that the loss at the start counts in both: an η set by hand has one loss of one batch to
tell it by, which may be next to nothing. A nat, or the whole range of a metric."""
FEWEST = 8
"""Losses before there is a rise."""
SETBACK = 0.1
"""What a rollback multiplies the budget by, or η that was given by hand."""


@dataclass(frozen=True)
class Observation:
    """What a step, or a round, tells.

    Attributes:
        loss: mean over all points.
        square: mean g².
        energy: Σ c² of what was applied, at η = 1: Σ (g/q)² of a single step.
        local_energy: the same of one client's own steps; of a single step `energy`.
        learning_rate: η that was applied.
        curvature: mean of (L₊ + L₋ − 2·L₀)/ε² over some directions; None if no L₀ was taken.
        directions: how many these are.
    """

    loss: float
    square: float
    energy: float
    local_energy: float
    learning_rate: float
    curvature: float | None
    directions: int

    @classmethod
    def from_step(
        cls,
        loss: float,
        gradients: NDArray[np.float32],
        learning_rate: float,
        curvature: float | None,
    ) -> Self:
        """Of one step of one model.

        Args:
            loss: mean over all points.
            gradients: float32 [q].
            learning_rate: η that was applied.
            curvature: mean over the q directions, or None.
        """
        square = float(np.mean(np.square(gradients, dtype=np.float64)))
        queries = len(gradients)
        energy = square / queries
        measured = queries if curvature is not None else 0
        return cls(loss, square, energy, energy, learning_rate, curvature, measured)

    def scaled(self, factor: float) -> Self:
        """Of the same step, if it moves the state by so many times as much."""
        more = factor * factor
        return replace(self, energy=more * self.energy, local_energy=more * self.local_energy)


@dataclass(frozen=True)
class _Average:
    """A mean that forgets: the plain mean of the first few, then an exponential one."""

    mean: float = 0.0
    variance: float = 0.0
    count: float = 0.0

    def after(self, value: float, memory: float, weight: float = 1.0) -> "_Average":
        """With one more value, which is itself a mean of `weight` values."""
        count = self.count + weight
        share = weight / min(count, max(memory, weight))
        off = value - self.mean
        # A mean of w values varies by 1/w of what single ones do.
        variance = (1 - share) * (self.variance + share * off * off * weight)
        if self.count == 0:
            variance = 0.0
        return _Average(self.mean + share * off, variance, min(count, memory + weight))

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return float(np.sqrt(self.variance / max(self.count, 1.0)))


@dataclass(frozen=True)
class StepSize:
    """The step size of a run of so many steps, or rounds, after those that were observed.

    Attributes:
        steps: of the whole run.
        given: η that was given by hand; None if it is to be found.
        epsilon: ε of the points that are tried.
        done: steps that were observed.
        spent: what the moves so far added to the loss by noise.
        back_to: the last observation showed a rise: its step is not taken, the state returns to
            what it was after so many steps; otherwise None.
    """

    steps: int
    given: float | None = None
    epsilon: float = np.inf
    done: int = 0
    spent: float = 0.0
    back_to: int | None = None
    _good: int = 0
    _good_spent: float = 0.0
    _lowest: float = np.inf
    _share: float = 1.0
    _start: _Average = _Average()
    _loss: _Average = _Average()
    _curvature: _Average = _Average()
    _measured: int = 0
    _square: _Average = _Average()
    _energy: _Average = _Average()
    _local_energy: _Average = _Average()

    def after(self, seen: Observation | None) -> "StepSize":
        """The step size after one more step or round, None if nothing was heard of it."""
        if seen is None:
            return replace(self, done=self.done + 1, back_to=None)
        # By an η set by hand everything moves from the first step on: its loss is the start alone.
        at_start = self.given is not None and self.done == 0
        loss = self._loss if at_start else self._loss.after(seen.loss, self._memory)
        if self._risen(loss, seen.loss):
            return replace(
                self,
                done=self.done + 1,
                back_to=self._good,
                spent=self._good_spent,
                _share=self._share * SETBACK,
                _loss=_Average(),
            )
        level = loss.mean + RISE * loss.error
        better = self._tells(loss) and level < self._lowest
        measured, curvature = self._measured, self._curvature
        if seen.curvature is not None and np.isfinite(seen.curvature):
            curvature = curvature.after(seen.curvature, MEMORY * seen.directions, seen.directions)
            measured += seen.directions
        start = self._start
        early = self.warming_up or start.count < self._memory / 2
        if at_start or (self.given is None and early):
            start = start.after(seen.loss, np.inf)
        after = replace(
            self,
            done=self.done + 1,
            back_to=None,
            _good=self.done if better else self._good,
            _good_spent=self.spent if better else self._good_spent,
            _lowest=level if better else self._lowest,
            _start=start,
            _loss=loss,
            _curvature=curvature,
            _measured=measured,
            _square=self._square.after(seen.square, self._memory),
            _energy=self._energy.after(seen.energy, self._memory),
            _local_energy=self._local_energy.after(seen.local_energy, self._memory),
        )
        price = 0.5 * after.curvature * seen.learning_rate**2 * seen.energy
        return replace(after, spent=self.spent + price)

    @property
    def learning_rate(self) -> float:
        """η of the next step or round; 0 while warming up."""
        if self.given is not None:
            return self.given * self._share
        if self.warming_up or self._energy.mean <= 0 or self.curvature <= 0:
            return 0.0
        scale = abs(self._start.mean)
        budget = self._share * max(FIRST_SHARE * scale, GAIN_SHARE * self.gain)
        left = max(self.steps - self.done, LEAST_LEFT * self.steps, 1.0)
        price = max(budget - self.spent, LEAST_SHARE * budget) / left
        most = self._share * MOST_AT_ONCE * scale
        local = max(self._local_energy.mean, 1e-300)
        square = min(min(price, most) / self._energy.mean, most / local)
        rate = np.sqrt(2 * square / self.curvature)
        return float(min(rate, REACH * self.epsilon / np.sqrt(local)))

    @property
    def clip(self) -> float:
        """The limit of the next |projected gradients|; 0 is none."""
        if self.given is not None or self.warming_up:
            return 0.0
        return OUTLIER * float(np.sqrt(self._square.mean))

    def clipped(self, gradients: NDArray[np.float32]) -> NDArray[np.float32]:
        """Projected gradients within ±clip, same shape."""
        limit = np.float32(self.clip or np.inf)
        return np.clip(gradients, -limit, limit)

    @property
    def warming_up(self) -> bool:
        """Whether curvature is not known well enough to move; a short run does not wait long."""
        if self.given is not None or self._measured >= WARM_UP:
            return False
        return not self._measured or self.done < WARM_UP_SHARE * self.steps

    @property
    def curvature(self) -> float:
        """An estimate of tr(H): the mean, but no less than its standard error.

        Of a single measurement, which has none, the size.
        """
        mean, error = self._curvature.mean, self._curvature.error
        return max(mean, error) if error else abs(mean)

    @property
    def gain(self) -> float:
        """By how much the loss fell, less the standard error of that; at least 0."""
        if not self._tells(self._loss):
            return 0.0
        fell = self._start.mean - self._loss.mean
        return max(0.0, fell - float(np.hypot(self._start.error, self._loss.error)))

    def curvature_every(self, queries: int, differences: Differences = "central") -> int:
        """Steps between those that take L₊, L₋ and L₀.

        With central differences L₀ is what is added: one per 16 directions, about 3 % of the rows.
        With forward ones it is L₋ of all queries, in one of 16 steps: about 6 %. Every step does
        while warming up; 0 is never.

        Args:
            queries: q.
            differences: that steps take anyway.
        """
        if self.given is not None:
            return 0
        if self.warming_up:
            return 1
        return CURVATURE_SHARE if differences == "forward" else max(1, CURVATURE_SHARE // queries)

    def measures_curvature(
        self, step: int, queries: int, differences: Differences = "central"
    ) -> bool:
        """Whether a step, counted from 0, takes L₊, L₋ and L₀."""
        every = self.curvature_every(queries, differences)
        return bool(every) and step % every == 0

    def _risen(self, average: _Average, latest: float) -> bool:
        """Whether the smoothed loss is above its lowest by more than its noise."""
        if self.done == 0:
            return False
        scale = max(abs(self._start.mean), LEAST_SCALE)
        if not latest <= min(self._lowest, self._start.mean) + AT_ONCE * scale:
            return True
        error = np.sqrt(average.variance / max(self._start.count, 1.0))
        lowest = min(self._lowest, self._start.mean + RISE * error)
        margin = RISE * average.error + LEAST_RISE * scale
        return self._tells(average) and average.mean > lowest + margin

    def _tells(self, average: _Average) -> bool:
        """Whether a smoothed loss is of enough steps to be compared."""
        return average.count >= min(FEWEST, self._memory)

    @property
    def _memory(self) -> float:
        return float(np.clip(self.steps / 10, 4, MEMORY))
