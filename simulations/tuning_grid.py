"""Tuning runs over seeds and over a grid of settings, and the table of their means."""

import itertools
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from rich.table import Table

from samara.client.tuning.settings import TuneSettings
from samara.shared.errors import ConfigError
from samara.shared.machine import cores
from samara.shared.settings import Scalar, flattened

Choices = Mapping[str, Scalar]
LONGEST_NAME = 100


@dataclass(frozen=True)
class Trial:
    """One point of a grid, with its run for every seed.

    Attributes:
        name: the values that distinguish it; empty if there is one trial.
        choices: these values by dotted key.
        runs: settings of its runs, by seed.
    """

    name: str
    choices: Choices
    runs: dict[int, TuneSettings]


def read_grid(file: Path) -> list[Choices]:
    """Read the values of settings from a TOML file and return their combinations.

    The file has a list of values for each key: ``learning-rate = [1e-4, 1e-3]``.

    Raises:
        ConfigError: if it cannot be read, or a key has no list of values.
    """
    try:
        values = flattened(tomllib.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{file}: the sweep cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
    for key, options in values.items():
        if not isinstance(options, list) or not options:
            raise ConfigError(f"{file}: {key}: give a list of values, such as {key} = [1, 2]")
    return [
        dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())
    ]


def make_trials(
    given: Mapping[str, Any],
    grid: Sequence[Choices],
    seeds: Sequence[int],
    out: str,
    devices: Sequence[str] = (),
) -> list[Trial]:
    """Return the trials of a grid; all their settings are checked.

    Args:
        given: settings that all runs share, by dotted key.
        grid: values of the settings of each trial.
        seeds: seeds, each once.
        out: folder that the runs' own folders are made in; empty for the usual ones.
        devices: torch devices that take the runs in turn, so that the same command gives every run
            the same one again; those on the CPU share its cores. Empty for the device in `given`.

    Raises:
        ConfigError: if a trial has a mistake, or a seed is there twice.
    """
    if len(set(seeds)) < len(seeds):
        raise ConfigError("--seeds: each seed once")
    trials, turns = [], itertools.cycle(devices)
    if "cpu" in devices:
        given = {"threads": max(1, cores() // list(devices).count("cpu"))} | dict(given)
    for choices in grid:
        name = " ".join(f"{key}={value}" for key, value in choices.items())
        runs = {}
        for seed in seeds:
            own: dict[str, Any] = {**given, **choices, "seed": seed}
            if devices:
                own["model.torch-device"] = next(turns)
            if out:
                own["out"] = str(Path(out) / _folder(name) / f"seed-{seed}")
            runs[seed] = TuneSettings.of(own, name or "tune")
        trials.append(Trial(name, choices, runs))
    return trials


def _folder(name: str) -> str:
    """Return a trial's name as that of a folder; a long one ends with its hash."""
    plain = re.sub(r"[^\w.=-]+", "_", name)
    if len(plain) <= LONGEST_NAME:
        return plain
    return f"{plain[:LONGEST_NAME]}-{sha256(name.encode()).hexdigest()[:8]}"


def run_trials(
    trials: Sequence[Trial], run: Callable[[TuneSettings], Mapping[str, Any]]
) -> dict[str, dict[int, Mapping[str, Any]]]:
    """Run every trial with every seed; return the results by name and seed.

    Args:
        trials: trials of one grid.
        run: function that makes a run, or finds it finished, and returns its result.
    """
    return {
        trial.name: {seed: run(settings) for seed, settings in trial.runs.items()}
        for trial in trials
    }


def run_side_by_side(
    trials: Sequence[Trial], devices: int, run: Callable[[TuneSettings], Mapping[str, Any]]
) -> dict[str, dict[int, Mapping[str, Any]]]:
    """Run every trial with every seed in processes of their own, one for each device.

    Args:
        trials: trials of one grid, made for so many devices.
        devices: number of devices.
        run: as in `run_trials`; a function of a module, which other processes can import.
    """
    runs = [
        (trial.name, seed, settings) for trial in trials for seed, settings in trial.runs.items()
    ]
    results = Parallel(n_jobs=devices)(
        delayed(_run_in_turn)([settings for *_, settings in runs[own::devices]], run)
        for own in range(devices)
    )
    found: dict[str, dict[int, Mapping[str, Any]]] = {trial.name: {} for trial in trials}
    for index, (name, seed, _) in enumerate(runs):
        found[name][seed] = results[index % devices][index // devices]
    return found


def _run_in_turn(
    runs: Sequence[TuneSettings], run: Callable[[TuneSettings], Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    return [run(settings) for settings in runs]


def grid_table(results: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> Table:
    """Return a table of every trial's metric, mean ± standard deviation over the seeds.

    The trial with the best mean on validation is bold: the test column chooses nothing.
    """
    first = next(iter(results.values()))
    metric = next(iter(first.values()))["metric"]
    table = Table(title=f"{metric}, mean ± standard deviation, {len(first)} seeds", box=None)
    table.add_column("settings")
    for heading in ("validation", "test", *(f"seed {seed}" for seed in first)):
        table.add_column(heading, justify="right")
    values = {
        name: {
            split: np.array([result[split][metric] for result in own.values()])
            for split in ("validation", "test")
        }
        for name, own in results.items()
    }
    best = max(values, key=lambda name: float(values[name]["validation"].mean()))
    for name, own in values.items():
        cells = [_mean(own["validation"]), _mean(own["test"])]
        cells += [f"{100 * value:.1f}" for value in own["test"]]
        emphasized = name == best and len(values) > 1
        table.add_row(name or "as given", *cells, style="bold" if emphasized else "")
    return table


def _mean(values: np.ndarray[Any, Any]) -> str:
    spread = f" ± {100 * values.std(ddof=1):.1f}" if len(values) > 1 else ""
    return f"{100 * values.mean():.1f}{spread}"
