"""Repetitions of a run with other seeds, which draw splits too, and intervals over the seeds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from samara.shared.config import RunConfig
from samara.shared.errors import ConfigError
from samara.shared.result import RunResult
from samara.simulations.comparison.columns import client_columns
from samara.simulations.comparison.measure import ACCURACY, Measure, figures_of, measure_of
from samara.simulations.comparison.statistics import CONFIDENCE


@dataclass(frozen=True)
class SeedInterval:
    """The quality of one column over seeds; each seed counts by its mean over the clients.

    Attributes:
        by_seed: mean over the clients of their accuracy, or of minus their bits per byte, by seed.
        mean: mean over the seeds.
        low, high: 95 % interval of the mean by Student's t; NaN with one seed.
        measure: what the quality is.
    """

    by_seed: dict[int, float]
    mean: float
    low: float
    high: float
    measure: Measure = ACCURACY


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of a list such as ``0,1,2``.

    Raises:
        ConfigError: if it is none.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {text}: give numbers with commas, such as 0,1,2") from None


def repeat(
    config_of: Callable[[int], RunConfig], seeds: Sequence[int], run: Callable[[RunConfig], Path]
) -> list[Path]:
    """Run a configuration once with every seed, and return the folders.

    With `out` every seed has a folder in that.

    Args:
        config_of: function that returns the settings with a seed; a `data.seed` that they leave
            open is that seed.
        seeds: seeds, each once.
        run: function that runs a configuration and returns its folder.

    Raises:
        ConfigError: if there is no seed, or one is given twice or not possible.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds {', '.join(map(str, seeds))}: give each once, at least one")
    return [run(_with_own_folder(config)) for config in list(map(config_of, seeds))]


def _with_own_folder(config: RunConfig) -> RunConfig:
    if not config.out:
        return config
    return config.with_values({"out": str(Path(config.out) / f"seed-{config.seed}")})


def seed_intervals(results: Sequence[RunResult]) -> dict[str, SeedInterval]:
    """Return the quality of every column on the clients' test examples, over seeds.

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


def _interval(by_seed: dict[int, float], measure: Measure) -> SeedInterval:
    values = np.array(list(by_seed.values()))
    mean, count = float(values.mean()), len(values)
    half = math.nan
    if count > 1:
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * values.std(ddof=1))
        half /= math.sqrt(count)
    return SeedInterval(by_seed, mean, mean - half, mean + half, measure)
