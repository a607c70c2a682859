"""Tuning runs over seeds and over a grid of settings, with a table of their means."""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from samara.client.tuning.settings import TuneSettings
from samara.client.tuning.tuning_curves import CURVES_FOLDER
from samara.shared.errors import ConfigError
from samara.shared.machine.process import cores
from samara.shared.settings.setting import flattened
from samara.simulations.experiments.experiments import (
    Choices,
    combinations,
    read_sweep_file,
    run_all,
    with_seeds,
)

LONGEST_NAME = 100

Result = Mapping[str, Any]
Results = Mapping[str, Mapping[int, Result]]
"""Results of a grid's runs, by trial name and by seed."""


@dataclass(frozen=True)
class Trial:
    """A point of a grid, with a run for every seed.

    Attributes:
        name: the values that distinguish the trial, as text; empty if there is only one trial.
        choices: values that distinguish the trial, by dotted key.
        runs: settings of the trial's runs, by seed.
    """

    name: str
    choices: Choices
    runs: dict[int, TuneSettings]


def read_grid(file: Path) -> list[Choices]:
    """Return all combinations of the settings' values in a TOML file.

    The file has a list of values for each key: ``learning-rate = [1e-4, 1e-3]``.

    Raises:
        ConfigError: if the file cannot be read, or the value of a key is not a list.
    """
    values = flattened(read_sweep_file(file))
    for key, options in values.items():
        if not isinstance(options, list) or not options:
            raise ConfigError(f"{file}: {key}: give a list of values, such as {key} = [1, 2]")
    return combinations(values)


def make_trials(
    given: Mapping[str, Any],
    grid: Sequence[Choices],
    seeds: Sequence[int],
    out: str,
    devices: Sequence[str] = (),
) -> list[Trial]:
    """Return the trials of a grid after validating all their settings.

    Args:
        given: settings shared by all runs, by dotted key.
        grid: values of the settings of each trial.
        seeds: distinct seeds.
        out: folder that will contain the runs' folders; empty for the default folders.
        devices: torch devices, which are assigned to the runs in turn. A repeated command assigns
            the same device to each run. Runs on the CPU share its cores. If empty, the runs use the
            device in `given`.

    Raises:
        ConfigError: if a trial has an invalid setting, or a seed occurs twice.
    """
    turns = itertools.cycle(devices)
    if "cpu" in devices:
        given = {"threads": max(1, cores() // list(devices).count("cpu"))} | dict(given)

    def trial_of(choices: Choices) -> Trial:
        name = " ".join(f"{key}={value}" for key, value in choices.items())
        place = {"out": str(Path(out) / _folder(name))} if out else {}

        def settings_of(seed: int) -> TuneSettings:
            own: dict[str, Any] = {**given, **choices, **place, "seed": seed}
            if devices:
                own["model.torch-device"] = next(turns)
            return TuneSettings.given(own, name or "tune")

        return Trial(name, choices, with_seeds(settings_of, seeds))

    return list(map(trial_of, grid))


def _folder(name: str) -> str:
    """Return a folder name for a trial; a long name is cut and ends with a hash."""
    plain = re.sub(r"[^\w.=-]+", "_", name)
    if len(plain) <= LONGEST_NAME:
        return plain
    return f"{plain[:LONGEST_NAME]}-{sha256(name.encode()).hexdigest()[:8]}"


def run_trials(
    trials: Sequence[Trial], run: Callable[[TuneSettings], Result], processes: int = 1
) -> Results:
    """Run every trial with every seed; return the results by name and seed.

    Args:
        trials: trials of one grid.
        run: as in `run_all`.
        processes: as in `run_all`.
    """
    runs = [settings for trial in trials for settings in trial.runs.values()]
    results = run_all(runs, run, processes)
    return {trial.name: {seed: next(results) for seed in trial.runs} for trial in trials}


def tuned_result(settings: TuneSettings) -> Result:
    """Run `samara tune` with these settings, print the run's folder, and return its result.

    This function runs in a separate process.

    Raises:
        SamaraError: if the run cannot start or continue.
    """
    from samara.client.tuning.run import read_result, tune

    folder = tune(settings)
    print(f"{folder}: finished on {settings.model.torch_device}", flush=True)
    return read_result(folder)


def compare_in_tensorboard(trials: Sequence[Trial], results: Results, out: Path) -> None:
    """Write settings and metrics of all runs for TensorBoard, if TensorBoard is installed.

    Args:
        trials: trials of one grid.
        results: results of the trials by name and seed.
        out: folder of the runs, which also contains their curves.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return
    with SummaryWriter(out / CURVES_FOLDER) as writer:
        for trial in trials:
            for seed, result in results[trial.name].items():
                metric = result["metric"]
                writer.add_hparams(
                    {**trial.choices, "seed": seed},
                    {
                        f"{split}/{metric}": result[split][metric]
                        for split in ("validation", "test")
                    },
                    run_name=Path(trial.runs[seed].out).relative_to(out).as_posix(),
                )


def grid_table(results: Results) -> Table:
    """Return a table of every trial's metric, mean ± standard deviation over the seeds.

    The trial with the best mean on validation is bold, because test results must not choose it.
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
