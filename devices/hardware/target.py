"""The time until a gain in accuracy on a device, by what runs took that were measured."""

from dataclasses import asdict, dataclass, replace
from math import ceil, exp, log
from typing import Any

from samara.devices.hardware.estimate import StepEstimate, estimate_readout, estimate_step
from samara.devices.hardware.profile import DeviceProfile
from samara.devices.hardware.roofline import Workload
from samara.devices.hardware.run_step import label_count, shape_of, workload_of
from samara.shared.config import RunConfig
from samara.shared.errors import ConfigError

PASSES = {2.0: (18_000, 92_000), 3.0: (111_000, 252_000), 4.0: (166_000, 449_000)}
"""Passes of all clients together, least and most of eight runs, until the accuracy was so many
points above zero-shot, by adapters inside the model: SST-2 and MiniLM, 1 to 64 clients
(docs/measurements/federations.md; three runs stopped below 4)."""
READOUT_GAIN, READOUT_ROUNDS = 8.8, 40
"""Points that a readout gained in so many rounds: SST-2 and MiniLM, eight clients
(docs/measurements/federations.md, "A readout on SST-2")."""


@dataclass(frozen=True)
class TargetEstimate:
    """The rounds and the time until a gain in accuracy, as a range.

    Attributes:
        points: the gain over zero-shot, in points of accuracy.
        rounds: fewest and most rounds.
        seconds: time of computing of a client that is in every cohort, least and most.
        assumption: what the range was taken from.
    """

    points: float
    rounds: tuple[int, int]
    seconds: tuple[float, float]
    assumption: str

    def describe(self) -> str:
        """Return the estimate and its assumption in words."""
        low, high = (_span(seconds) for seconds in self.seconds)
        fewest, most = self.rounds
        # A readout's steps take next to nothing beside the pass before the first of them.
        span = f"{low} to {high}" if low != high else f"about {high}"
        return (
            f"+{self.points:g} points: {span} of computing, {fewest:,} to {most:,} "
            f"rounds, without transfers and waiting. Assumed: {self.assumption}; other data, "
            "models and divisions may never gain as much, which a simulation shows."
        )

    def as_json(self) -> dict[str, Any]:
        """Return the estimate as a JSON object."""
        return asdict(self)


def step_of(config: RunConfig, device: DeviceProfile, sequence: int = 0) -> StepEstimate:
    """Predict the step of a run on a device.

    Args:
        config: settings of the run.
        device: device profile.
        sequence: tokens of an example; 0 is the most that a run reads.

    Raises:
        SamaraError: if the model's shape cannot be read, or the step is not possible.
    """
    shape = shape_of(config)
    work = replace(workload_of(config, shape), curvature=False)  # which few steps measure
    work = replace(work, sequence=sequence) if sequence else work
    if config.model.stream == "host" and device.host is not None:
        work = replace(work, stream="host")
    if config.adapter.inner_layers:
        return estimate_step(shape, device, work)
    return estimate_readout(shape, device, work, label_count(config.task), config.batch)


def _span(seconds: float) -> str:
    """Return a time in the largest unit of which it has two or more."""
    for name, size in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {name}"
    return f"{seconds:.1f} s"


def parse_points(text: str) -> float:
    """Return the points of a target such as ``+3``.

    Raises:
        ConfigError: if it is no number above 0.
    """
    try:
        points = float(text)
    except ValueError:
        points = 0.0
    if not 0 < points < 100:
        raise ConfigError(f"--target {text}: give points of accuracy above zero-shot, such as +3")
    return points


def estimate_target(config: RunConfig, step: StepEstimate, points: float) -> TargetEstimate:
    """Predict when a federation is some points above zero-shot.

    Args:
        config: settings of the run.
        step: predicted step of a client's device.
        points: points of accuracy.

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
            f"on SST-2 with MiniLM {least:,} to {most:,} passes of all clients together were "
            f"needed, and {cohort} clients make {in_round:,} in a round"
        )
    parts = ceil(config.batch / step.work.batch) if config.adapter.inner_layers else 1
    in_round_seconds = config.steps * parts * step.time.total
    low, high = (first + number * in_round_seconds for number in rounds)
    return TargetEstimate(points, rounds, (low, high), assumption)


def _check_measured(points: float, most: float, what: str) -> None:
    if points > most:
        raise ConfigError(
            f"--target +{points:g}: {what} gained at most {most:g} points in measurements; "
            "choose less"
        )


def _passes_until(points: float) -> tuple[int, int]:
    """Return the passes until a gain, between measured ones on a logarithmic scale."""
    known = sorted(PASSES)
    below = max((each for each in known if each <= points), default=known[0])
    above = min((each for each in known if each >= points), default=known[-1])
    share = (points - below) / (above - below) if above > below else 0.0
    ends = zip(PASSES[below], PASSES[above], strict=True)
    least, most = (round(exp((1 - share) * log(one) + share * log(other))) for one, other in ends)
    return least, most


def _rows(work: Workload, batch: int) -> int:
    """Return the passes of one example that a step takes."""
    return batch * sum(rows * passes for rows, passes in work.passes) // work.batch
