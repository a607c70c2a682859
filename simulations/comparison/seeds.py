"""The seeds of compared runs, the data splits that the seeds draw, and intervals over seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samara.shared.results.result import RunResult
from samara.simulations.comparison.columns import client_columns
from samara.simulations.comparison.measure import ACCURACY, Measure, figures_of, measure_of
from samara.simulations.comparison.statistics import CONFIDENCE
from samara.simulations.comparison.verdict import describe_interval

DATA_SEED = "data.seed"


@dataclass(frozen=True)
class SeedInterval:
    """The quality of one column over seeds, where a seed's quality is the mean over clients.

    Attributes:
        by_seed: mean over clients of accuracy, or of minus the bits per byte, by seed.
        mean: mean over seeds.
        low: lower end of the 95 % interval of the mean by Student's t; NaN with one seed.
        high: upper end of the interval; NaN with one seed.
        measure: measure of the quality.
    """

    by_seed: dict[int, float]
    mean: float
    low: float
    high: float
    measure: Measure = ACCURACY


def seeds_draw_splits(configs: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether each run's seed also draws its data split, so that the splits differ."""
    follows = all(config.get(DATA_SEED) == config.get("seed") for config in configs)
    return follows and len({config.get(DATA_SEED) for config in configs}) > 1


def describe_seeds(configs: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence about the data splits of runs that differ in their seeds.

    Args:
        configs: settings of the runs by dotted key, at least one.
    """
    drawn = {config.get("data.seed", 0) for config in configs}
    if len(drawn) == 1:
        return f"all seeds use the same split of the data (data.seed {drawn.pop()})"
    if all(config.get("data.seed") == config.get("seed") for config in configs):
        return "each seed uses its own split of the data (data.seed equals seed)"
    return (
        f"the runs use several splits of the data (data.seed {', '.join(sorted(map(str, drawn)))})"
    )


def seed_intervals(results: Sequence[RunResult]) -> dict[str, SeedInterval]:
    """Return the quality of every column over seeds, on the clients' test examples.

    Raises:
        SamaraError: if no client evaluated on test examples.
    """
    by_seed = {int(result.config["seed"]): client_columns(result) for result in results}
    names = [
        name
        for name in next(iter(by_seed.values()))
        if all(name in columns for columns in by_seed.values())
    ]
    return {
        name: _interval(
            {
                seed: float(np.mean([figures_of(own).quality for own in columns[name].values()]))
                for seed, columns in by_seed.items()
            },
            measure_of(next(iter(by_seed.values()))[name].values()),
        )
        for name in names
    }


def describe_seed_verdict(intervals: Mapping[str, SeedInterval]) -> str:
    """Return a sentence that compares the last column with the best other column, over seeds.

    Args:
        intervals: columns from `seed_intervals`.

    Returns:
        The sentence; empty if there is only one column.
    """
    *others, name = intervals
    if not others:
        return ""
    best = max(others, key=lambda other: intervals[other].mean)
    measure = intervals[name].measure
    one = intervals[name].by_seed
    other = intervals[best].by_seed
    own = _interval({seed: one[seed] - other[seed] for seed in one}, measure)
    what = describe_interval(own.low, own.high, measure, "seeds")
    return f"{name} is {measure.place(own.mean)} {best}, the best other column ({what})"


def _interval(by_seed: dict[int, float], measure: Measure) -> SeedInterval:
    values = np.array(list(by_seed.values()))
    mean = float(values.mean())
    count = len(values)
    half = math.nan
    if count > 1:
        from scipy import stats

        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * values.std(ddof=1))
        half /= math.sqrt(count)
    return SeedInterval(by_seed, mean, mean - half, mean + half, measure)
