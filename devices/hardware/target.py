"""The time until a federation reaches an accuracy gain on a device, from measured runs."""

from dataclasses import asdict, dataclass, replace
from math import ceil, exp, log
from typing import Any

from samara.devices.hardware.estimate import StepEstimate, estimate_readout, estimate_step
from samara.devices.hardware.profile import DeviceProfile
from samara.devices.hardware.roofline import Workload
from samara.devices.hardware.run_step import label_count, shape_of, workload_of
from samara.shared.errors import ConfigError
from samara.shared.settings.config import RunConfig

PASSES = {2.0: (18_000, 92_000), 3.0: (111_000, 252_000), 4.0: (166_000, 449_000)}
"""Number of passes over all clients until an accuracy gain over zero-shot, by percentage points.

Each pair is the minimum and the maximum over eight runs with adapters inside the model: SST-2 and
MiniLM, 1 to 64 clients (docs/measurements/federations.md). Three of the runs ended below 4 points.
"""
READOUT_GAIN = 8.8
"""Percentage points of accuracy that a readout gained in `READOUT_ROUNDS` rounds.

The run had SST-2, MiniLM and eight clients (docs/measurements/federations.md, "A readout on
SST-2").
"""
READOUT_ROUNDS = 40


@dataclass(frozen=True)
class TargetEstimate:
    """The rounds and the time until an accuracy gain, as ranges.

    Attributes:
        points: the gain over zero-shot, in percentage points of accuracy.
        rounds: minimum and maximum number of rounds.
        seconds: minimum and maximum compute time, in seconds, of a client that is in every cohort.
        assumption: the measurement behind the range.
    """

    points: float
    rounds: tuple[int, int]
    seconds: tuple[float, float]
    assumption: str

    def describe(self) -> str:
        """Return the estimate and its assumption as text."""
        low, high = (_span(seconds) for seconds in self.seconds)
        fewest, most = self.rounds
        # A readout's steps take almost no time compared with the pass before the first.
        span = f"{low} to {high}" if low != high else f"about {high}"
        return (
            f"+{self.points:g} points: {span} of computing, {fewest:,} to {most:,} "
            f"rounds, without transfers and waiting. Assumed: {self.assumption}; other data, "
            f"models and divisions may never gain as much; check with a simulation."
        )

    def as_json(self) -> dict[str, Any]:
        """Return the estimate as a JSON object."""
        return asdict(self)


def step_of(config: RunConfig, device: DeviceProfile, sequence: int = 0) -> StepEstimate:
    """Predict the step of a run on a device.

    Args:
        config: settings of the run.
        device: device profile.
        sequence: tokens of an example; 0 means the maximum that the run reads.

    Raises:
        SamaraError: if the model's shape cannot be read, or the step is not possible.
    """
    shape = shape_of(config)
    work = replace(workload_of(config, shape), curvature=False)  # few steps measure curvature
    work = replace(work, sequence=sequence) if sequence else work
    if config.model.stream == "host" and device.host is not None:
        work = replace(work, stream="host")
    if config.adapter.inner_layers:
        return estimate_step(shape, device, work)
    return estimate_readout(shape, device, work, label_count(config.task), config.batch)


def _span(seconds: float) -> str:
    """Format a time in the largest unit in which it is at least two."""
    for name, size in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {name}"
    return f"{seconds:.1f} s"


def parse_points(text: str) -> float:
    """Return the points of a target such as ``+3``.

    Raises:
        ConfigError: if the text is not a number above 0.
    """
    try:
        points = float(text)
    except ValueError:
        points = 0.0
    if not 0 < points < 100:
        raise ConfigError(f"--target {text}: give points of accuracy above zero-shot, such as +3")
    return points


def estimate_target(config: RunConfig, step: StepEstimate, points: float) -> TargetEstimate:
    """Predict the rounds and seconds until a federation's accuracy is some points above zero-shot.

    Args:
        config: settings of the run.
        step: predicted step of a client's device.
        points: percentage points of accuracy.

    Raises:
        ConfigError: if no measured run gained that much.
    """
    first = step.first_pass.total if step.first_pass else 0.0
    if not config.adapter.inner_layers:
        _check_measured(points, READOUT_GAIN, "a readout")
        rounds = (1, READOUT_ROUNDS)
        assumption = (
            f"a readout on SST-2 with MiniLM and eight clients gained {READOUT_GAIN} points in "
            f"{READOUT_ROUNDS} rounds; smaller gains came earlier"
        )
    else:
        _check_measured(points, max(PASSES), "adapters inside the model")
        least, most = _passes_until(points)
        cohort = ceil(config.cohort.fraction * config.data.clients)
        in_round = cohort * config.steps * _rows(step.work, config.batch)
        rounds = ceil(least / in_round), ceil(most / in_round)
        assumption = (
            f"on SST-2 with MiniLM, all clients together needed {least:,} to {most:,} passes, and "
            f"{cohort} clients make {in_round:,} in a round"
        )
    parts = ceil(config.batch / step.work.batch) if config.adapter.inner_layers else 1
    in_round_seconds = config.steps * parts * step.time.total
    low, high = (first + number * in_round_seconds for number in rounds)
    return TargetEstimate(points, rounds, (low, high), assumption)


def _check_measured(points: float, most: float, what: str) -> None:
    if points > most:
        raise ConfigError(
            f"--target +{points:g}: {what} gained at most {most:g} points in measurements; "
            "choose a smaller gain"
        )


def _passes_until(points: float) -> tuple[int, int]:
    """Return the lowest and the highest number of passes needed for a gain.

    Both are interpolated between measurements on a logarithmic scale.
    """
    known = sorted(PASSES)
    below = max((each for each in known if each <= points), default=known[0])
    above = min((each for each in known if each >= points), default=known[-1])
    share = (points - below) / (above - below) if above > below else 0.0
    ends = zip(PASSES[below], PASSES[above], strict=True)
    least, most = (round(exp((1 - share) * log(one) + share * log(other))) for one, other in ends)
    return least, most


def _rows(work: Workload, batch: int) -> int:
    """Return the number of passes that a step takes per example."""
    return batch * sum(rows * passes for rows, passes in work.passes) // work.batch
