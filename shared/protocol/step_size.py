"""A step size without a search, derived from the loss that the noise of the steps adds.

Moving by Σ c·z along random directions adds ½·tr(H)·Σ c² to the loss, for any coefficients c. This
is the second-order term of the zeroth-order descent lemma (Malladi et al., 2023, section 4; Ghadimi
and Lan, 2013). It is the cost of the noise in an estimate from q ≪ d directions. tr(H) is estimated
by the mean of (L₊ + L₋ − 2·L₀)/ε² over the step's directions (Hutchinson, 1990), and Σ c² is known
exactly.

The step also lowers the loss. In a run of T equal steps this gain grows as η·T, and the cost grows
as η²·T. At the best η the cost is half of the gain, and equals the net fall of the loss. The step
size is therefore chosen to spend a share of the gain so far, or at first a share of the initial
loss, spread evenly over the remaining steps (docs/concepts/step-size.md).

A decreasing step size is this step size times twice the share of the remaining steps. Its mean over
the run is the same, and its last value is 0. A constant step size would leave the noise of the last
steps, and the differences between clients' local steps, in the model.

The step size is a pure function of the observations of all steps or rounds so far. They are
recorded in a file, from which a run continues. An observation is written before its step, so that
every recorded step has its observation. A continued run ignores an observation whose step was not
recorded, and makes the same observation again when it repeats the step.
"""

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import SamaraError
from samara.shared.protocol.directions import Differences
from samara.shared.protocol.layout import READOUT_GROUP, Layout
from samara.shared.storage.events import EventFollower, append_in_parts, read_events
from samara.shared.storage.files import write_durably

WARM_UP = 32
"""Number of directions whose curvature is measured before the first update."""
WARM_UP_SHARE = 0.1
"""Share of all steps after which the warm-up ends, if any curvature was measured."""
FIRST_SHARE = 0.04
"""Share of the initial loss that updates may add by noise before the loss has fallen."""
GAIN_SHARE = 0.5
"""Share of the gain so far, less its standard error, that noise may add to the loss in total."""
LEAST_SHARE = 0.1
"""Share of the budget that always remains available, even if the whole budget has been spent."""
LEAST_LEFT = 0.1
"""Least number of steps over which the budget is spread near the end, as a share of all steps."""
MOST_AT_ONCE = 0.01
"""Largest share of the initial loss that a step, or a client in a round, may add by noise."""
MEMORY = 50
"""Largest number of steps over which observations are averaged.

A run of fewer than 500 steps averages over a tenth of its steps, but at least 4.
"""
REACH = 30.0
"""Largest distance √Σ c² that one step, or one client in a round, moves the weights, in units of ε.

Curvature is measured from perturbations of size ε, and may be different at a larger distance.
"""
OUTLIER = 4.0
"""Clip of projected gradients, in units of their root mean square."""
CURVATURE_SHARE = 16
"""Number of directions per measured L₀ with central differences, or of steps per measured L₋ with
forward differences.
"""
RISE = 3.0
"""Number of standard errors above the lowest smoothed loss from which a loss counts as a rise."""
LEAST_RISE = 0.1
"""Least rise of the smoothed loss beyond the noise that `RISE` allows, in initial losses."""
AT_ONCE = 4.0
"""Multiple of the initial loss by which a single loss must exceed the lowest loss to be a rise."""
LEAST_SCALE = 1.0
"""Least initial loss for `LEAST_RISE` and `AT_ONCE`: one nat, or the whole range of a metric.

With an η set by hand, the initial loss is known from one batch only, and may be almost 0.
"""
FEWEST = 8
"""Least number of losses before a rise is detected."""
SETBACK = 0.1
"""Factor that reduces the budget, or an η set by hand, after a rise."""
COMPONENT_TIME = 5.0
"""The sum of η over a trained number's steps in a run with components, for two labels and
`USUAL_CLIENTS`."""
USUAL_CLIENTS = 8
"""The number of clients that `COMPONENT_TIME` was measured with."""
log = logging.getLogger("samara")

STEP_SIZE_FILE = "step_size.jsonl"
_CLIENTS = "clients"
_OF_NOISE = ("loss_noise", "curvature_noise", "curvature_is_root")


def component_rate(
    layout: Layout, rounds: int, queries: int, clients: int = USUAL_CLIENTS
) -> float:
    """Return the step size η of the local update whose components a client reports.

    A client with n examples minimises its mean loss plus |Δ|²/(2·n·η). This is an implicit gradient
    step on the sum of its losses. Over a run each trained number takes part in R·q/d such steps, so
    η·R·q/d is the time of an equivalent gradient flow on the sum of losses. This time acts as the
    inverse of a penalty, as in early stopping, and η is chosen so that it is the same for all R, q
    and d.

    A round moves the common model by the mean of the clients' updates, while the sum of losses
    covers all clients' examples. η is therefore proportional to the number of clients, so that the
    penalty beside the sum of all losses does not depend on that number. The softmax of C equally
    likely labels has the curvature 1/C along a contrast, so the time is proportional to C.

    Args:
        layout: layout of a readout alone, of d trained numbers.
        rounds: rounds of the run, R.
        queries: directions of a round, q.
        clients: number of clients that train together; `USUAL_CLIENTS` for a client that trains
            alone.
    """
    labels = 1 + sum(tensor.rows for tensor in layout.group(READOUT_GROUP))
    time = COMPONENT_TIME * labels / 2 * clients / USUAL_CLIENTS
    return time * layout.size / (rounds * queries)


def curvature_interval(queries: int, differences: Differences) -> int:
    """Return the number of steps between measurements of curvature after the warm-up."""
    return CURVATURE_SHARE if differences == "forward" else max(1, CURVATURE_SHARE // queries)


@dataclass(frozen=True)
class Observation:
    """The measurements of a step or a round, from which the next step size is computed.

    Attributes:
        loss: mean loss over all perturbations.
        mean_square: mean of g².
        squared_norm: Σ c² of the update at η = 1; Σ (g/q)² for a single step.
        local_squared_norm: Σ c² of one client's local steps; `squared_norm` for a single step.
        learning_rate: η of the update.
        curvature: mean of (L₊ + L₋ − 2·L₀)/ε² over some directions; None if not measured.
        directions: number of these directions.
        loss_noise, curvature_noise: standard deviations of the noise added to loss and curvature.
        curvature_is_root: whether `curvature` is a mean of clients' `curvature_root`, not of
            curvatures.
    """

    loss: float
    mean_square: float
    squared_norm: float
    local_squared_norm: float
    learning_rate: float
    curvature: float | None
    directions: int
    loss_noise: float = 0.0
    curvature_noise: float = 0.0
    curvature_is_root: bool = False

    @classmethod
    def from_step(
        cls,
        loss: float,
        gradients: NDArray[np.float32],
        learning_rate: float,
        curvature: float | None,
    ) -> Self:
        """Return the observation of one step of one model.

        Args:
            loss: mean loss over all perturbations.
            gradients: projected gradients, float32 [q].
            learning_rate: η of the update.
            curvature: mean over the q directions; None if not measured.
        """
        square = float(np.mean(np.square(gradients, dtype=np.float64)))
        queries = len(gradients)
        squared_norm = square / queries
        measured = queries if curvature is not None else 0
        return cls(loss, square, squared_norm, squared_norm, learning_rate, curvature, measured)

    def scaled(self, factor: float) -> Self:
        """Return the observation of the same step with an update `factor` times as large."""
        more = factor * factor
        return replace(
            self,
            squared_norm=more * self.squared_norm,
            local_squared_norm=more * self.local_squared_norm,
        )


@dataclass(frozen=True)
class _Average:
    """A running mean and variance: of all values at first, later with exponential weights."""

    mean: float = 0.0
    variance: float = 0.0
    count: float = 0.0

    def after(
        self, value: float, memory: float, weight: float = 1.0, noise: float = 0.0
    ) -> "_Average":
        """Return the running mean after one more value.

        Args:
            value: the new value.
            memory: number of values after which the mean becomes exponential.
            weight: number of single values of which the new value is the mean.
            noise: standard deviation of the value's known noise, a lower limit for the estimated
                standard deviation.
        """
        count = self.count + weight
        share = weight / min(count, max(memory, weight))
        off = value - self.mean
        # A mean of w values varies by 1/w of the variance of single values.
        variance = (1 - share) * (self.variance + share * off * off * weight)
        if self.count == 0:
            variance = 0.0
        variance = max(variance, noise * noise * weight)
        return _Average(self.mean + share * off, variance, min(count, memory + weight))

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return float(np.sqrt(self.variance / max(self.count, 1.0)))


@dataclass(frozen=True)
class StepSize:
    """The step size of a run, and the statistics of all steps or rounds observed so far.

    Attributes:
        steps: number of steps or rounds of the whole run.
        given: η set by hand; None to estimate it.
        epsilon: size ε of perturbations.
        decreasing: whether η falls linearly to 0, from a set η, or from twice the estimated η, so
            that the mean stays the same.
        done: number of observed steps.
        spent: loss that the noise of updates has added so far.
        back_to: after a rise of the loss, the step to whose state the run must return without
            applying the last update; otherwise None.
    """

    steps: int
    given: float | None = None
    epsilon: float = np.inf
    decreasing: bool = False
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
    _is_root: bool = False
    _measured: int = 0
    _mean_square: _Average = _Average()
    _squared_norm: _Average = _Average()
    _local_squared_norm: _Average = _Average()

    def after(self, observation: Observation | None) -> "StepSize":
        """Return the step size after one more step or round.

        Args:
            observation: observation of the step or round; None if it has none.
        """
        if observation is None:
            return replace(self, done=self.done + 1, back_to=None)
        # An η set by hand moves the model from the first step on, so only the first loss belongs to
        # the start.
        at_start = self.given is not None and self._start.count == 0
        noise = observation.loss_noise
        loss = self._loss
        if not at_start:
            loss = loss.after(observation.loss, self._memory, noise=noise)
        # The first loss, with which this one is compared, has noise, too.
        spread = float(np.hypot(noise, self._start.error)) if noise else 0.0
        if self._has_risen(loss, observation.loss - RISE * spread):
            return replace(
                self,
                done=self.done + 1,
                back_to=self._good,
                spent=self._good_spent,
                _share=self._share * SETBACK,
                _loss=_Average(),
            )
        level = loss.mean + RISE * loss.error
        better = self._is_comparable(loss) and level < self._lowest
        measured, curvature = self._measured, self._curvature
        if observation.curvature is not None and np.isfinite(observation.curvature):
            curvature = curvature.after(
                observation.curvature,
                MEMORY * observation.directions,
                observation.directions,
                observation.curvature_noise,
            )
            measured += observation.directions
        start = self._start
        early = self.warming_up or start.count < self._memory / 2
        if at_start or (self.given is None and early):
            start = start.after(observation.loss, np.inf, noise=noise)
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
            _is_root=observation.curvature_is_root,
            _measured=measured,
            _mean_square=self._mean_square.after(observation.mean_square, self._memory),
            _squared_norm=self._squared_norm.after(observation.squared_norm, self._memory),
            _local_squared_norm=self._local_squared_norm.after(
                observation.local_squared_norm, self._memory
            ),
        )
        price = 0.5 * after.curvature * observation.learning_rate**2 * observation.squared_norm
        return replace(after, spent=self.spent + price)

    @property
    def learning_rate(self) -> float:
        """The η of the next step or round; 0 during the warm-up."""
        ahead = max(self.steps - self.done - 0.5, 0.5) / self.steps
        if self.given is not None:
            return self.given * self._share * (ahead if self.decreasing else 1.0)
        if self.warming_up or self._squared_norm.mean <= 0 or self.curvature <= 0:
            return 0.0
        scale = abs(self._start.mean)
        budget = self._share * max(FIRST_SHARE * scale, GAIN_SHARE * self.gain)
        left = max(self.steps - self.done, LEAST_LEFT * self.steps, 1.0)
        price = max(budget - self.spent, LEAST_SHARE * budget) / left
        most = self._share * MOST_AT_ONCE * scale
        local = max(self._local_squared_norm.mean, 1e-300)
        square = min(min(price, most) / self._squared_norm.mean, most / local)
        rate = np.sqrt(2 * square / self.curvature) * (2 * ahead if self.decreasing else 1.0)
        return float(min(rate, REACH * self.epsilon / np.sqrt(local)))

    @property
    def clip(self) -> float:
        """The limit of the next projected gradients' absolute values; 0 for none."""
        if self.given is not None or self.warming_up:
            return 0.0
        return OUTLIER * float(np.sqrt(self._mean_square.mean))

    def clipped(self, gradients: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return projected gradients clipped to ±clip, same shape."""
        limit = np.float32(self.clip or np.inf)
        return np.clip(gradients, -limit, limit)

    @property
    def warming_up(self) -> bool:
        """Return whether the run is in its warm-up, which measures curvature without updates."""
        if self.given is not None or self._measured >= WARM_UP:
            return False
        return not self._measured or self.done < WARM_UP_SHARE * self.steps

    @property
    def curvature(self) -> float:
        """An estimate of tr(H): the mean of the curvatures, but at least its standard error.

        A single measurement has no standard error, so its absolute value is used. A mean of roots
        is squared.
        """
        mean, error = self._curvature.mean, self._curvature.error
        found = max(mean, error) if error else abs(mean)
        return found**2 if self._is_root else found

    @property
    def gain(self) -> float:
        """The fall of the loss so far, less its standard error; at least 0."""
        if not self._is_comparable(self._loss):
            return 0.0
        fell = self._start.mean - self._loss.mean
        return max(0.0, fell - float(np.hypot(self._start.error, self._loss.error)))

    def curvature_every(self, queries: int, differences: Differences = "central") -> int:
        """Return the number of steps between measurements of curvature; 0 for none.

        With central differences, a measurement needs L₀ in addition. One L₀ per 16 directions adds
        about 3 % to the rows. With forward differences, it needs L₋ of all queries. A measurement
        in one of 16 steps adds about 6 %. The first step of every round measures, so shorter rounds
        have a larger share. During the warm-up every step measures curvature.

        Args:
            queries: directions per step, q.
            differences: differences of the other steps.
        """
        if self.given is not None:
            return 0
        return 1 if self.warming_up else curvature_interval(queries, differences)

    def measures_curvature(
        self, step: int, queries: int, differences: Differences = "central"
    ) -> bool:
        """Return whether a step, counted from 0, measures curvature from L₊, L₋ and L₀."""
        every = self.curvature_every(queries, differences)
        return bool(every) and step % every == 0

    def _has_risen(self, average: _Average, latest: float) -> bool:
        """Return whether the loss has risen above its lowest smoothed value, beyond its noise."""
        if self._start.count == 0:
            return False
        scale = max(abs(self._start.mean), LEAST_SCALE)
        if not latest <= min(self._lowest, self._start.mean) + AT_ONCE * scale:
            return True
        error = np.sqrt(average.variance / max(self._start.count, 1.0))
        lowest = min(self._lowest, self._start.mean + RISE * error)
        margin = RISE * average.error + LEAST_RISE * scale
        return self._is_comparable(average) and average.mean > lowest + margin

    def _is_comparable(self, average: _Average) -> bool:
        """Return whether a smoothed loss is the mean of enough steps to be compared."""
        return average.count >= min(FEWEST, self._memory)

    @property
    def _memory(self) -> float:
        return float(np.clip(self.steps / 10, 4, MEMORY))


class RecordedStepSize:
    """The step size of a run, with a file that records its observations.

    Attributes:
        size: step size after all recorded steps.
        latest: observation of the last recorded step; None if this step has no observation.
    """

    def __init__(self, size: StepSize, file: Path | None = None, done: int = 0) -> None:
        """Create the step size, or restore it from the observations in the file.

        Args:
            size: step size before the first step.
            file: file of the observations; if None, they are not recorded.
            done: number of steps taken.

        Raises:
            SamaraError: if the file is damaged, or lacks one of the steps taken. An incomplete last
                line is no error; it is replaced by a line without observation.
        """
        self.size, self._file = size, file
        self.latest: Observation | None = None
        if file:
            _replace_half_line(file, done)
        events = {event.get("step"): event for event in read_events(file)} if file else {}
        for step in range(1, done + 1):
            if file and step not in events:
                raise SamaraError(
                    f"{file}: lacks step {step} of {done}; restore the file, or begin the run in "
                    "another folder"
                )
            self.latest = _observation(events[step], file)
            self.size = self.size.after(self.latest)

    def record(self, observation: Observation | None, clients: Collection[int] = ()) -> StepSize:
        """Record an observation durably, and return the step size after it.

        Args:
            observation: observation of the step; None if the step has none.
            clients: clients whose reports the observation uses. A repetition of the run needs them.

        Raises:
            SamaraError: if the file cannot be written.
        """
        self.size, self.latest = self.size.after(observation), observation
        if self._file:
            try:
                event = _event(observation) if observation else {}
                if observation and clients:
                    event[_CLIENTS] = sorted(clients)
                append_in_parts(self._file, {"step": self.size.done} | event)
            except OSError as error:
                raise SamaraError(f"{self._file}: cannot be written: {error.strerror}") from error
        return self.size


def read_observed_clients(file: Path) -> dict[int, list[int] | None]:
    """Return, for each step, the clients whose reports its `Observation` summarizes.

    The value is None if a step's clients were not recorded. If a step was repeated, its last record
    counts.
    """
    clients_by_step: dict[int, list[int] | None] = {}
    for event in EventFollower(file).read_new():
        clients_by_step[event["step"]] = [] if list(event) == ["step"] else event.get(_CLIENTS)
    return clients_by_step


def _replace_half_line(file: Path, done: int) -> None:
    """Replace an incomplete last line by a line for a step without observation.

    Only the observation is lost, because the ledger holds the step itself.
    """
    data = file.read_bytes() if file.exists() else b""
    end = data.rfind(b"\n") + 1
    if end == len(data):
        return
    steps = {event.get("step") for event in read_events(file)}
    was_cut = file.stat().st_size == end
    if was_cut and done not in steps and steps.issuperset(range(1, done)):
        line = json.dumps({"step": done}) + "\n"
        write_durably(file, data[:end], line.encode())
        log.warning(
            "%s: the line of step %d was cut off; the step size continues without its observation",
            file,
            done,
        )


def _event(observation: Observation) -> dict[str, Any]:
    event = asdict(observation)
    return {key: value for key, value in event.items() if value or key not in _OF_NOISE}


def _observation(event: Mapping[str, Any], file: Path | None) -> Observation | None:
    if list(event) == ["step"]:
        return None
    apart = ("step", _CLIENTS)
    try:
        return Observation(**{key: value for key, value in event.items() if key not in apart})
    except TypeError as error:
        raise SamaraError(f"{file}: damaged: {error}; begin the run in another folder") from error
