"""Search for settings on validation examples only, with an equal number of trials per method.

The search is successive halving (Jamieson and Talwalkar, 2016, algorithm 1). All trials of a method
run with a part of the budget of rounds. The better half continues with twice the budget, until one
trial is left or the budget is complete. Each rung starts new runs from the beginning, so that step
sizes and the division of the budget have the same meaning in short and long runs.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from samara.shared.errors import ConfigError, SamaraError
from samara.shared.results.result import RunResult
from samara.shared.settings.choices import with_overrides
from samara.shared.settings.config import Method, RunConfig, non_default_settings, reads
from samara.shared.settings.setting import Scalar, explain, nest
from samara.shared.storage.files import make_folder, write_durably
from samara.simulations.experiments.experiments import (
    Choices,
    combinations,
    read_sweep_file,
    run_all,
)

SHARE = "private-share"
"""Key of a setting that exists only in sweeps: the share of private rounds in the budget."""
SWEEP_FILE = "sweep.json"

Values = Annotated[list[Scalar], Field(min_length=1)]


class Sweep(BaseModel):
    """The content of a sweep file.

    Attributes:
        methods: methods whose settings are searched.
        trials: number of trials per method; limited to the size of the method's grid.
        rungs: number of budgets of rounds, each of them half of the next; 1 means no halving.
        settings: values of each setting, for all methods that use the setting.
        only: values of settings for single methods, which extend or replace `settings`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    methods: list[Method] = Field(min_length=1)
    trials: int = Field(4, ge=1, le=1000)
    rungs: int = Field(2, ge=1, le=10)
    settings: dict[str, Values] = {}
    only: dict[Method, dict[str, Values]] = {}

    @model_validator(mode="after")
    def _a_method_reads_what_is_only_for_it(self) -> Self:
        for method, values in self.only.items():
            for key in values:
                if not _reads(method, key):
                    raise ValueError(f"only.{method}: {method} does not use {key}; leave {key} out")
        return self

    @classmethod
    def read(cls, file: Path) -> "Sweep":
        """Read a sweep file.

        Raises:
            ConfigError: if the file cannot be read or is invalid; the message lists every mistake.
        """
        content = read_sweep_file(file)
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise ConfigError(explain(error, str(file), list(cls.model_fields))) from error

    def trials_of(self, method: Method, seed: int) -> list[Choices]:
        """Draw points of a method's grid by a seed; each point is a trial.

        No point is drawn twice. Each draw prefers the values that were drawn least often, so that
        even a few trials use all values of a setting about equally often.
        """
        values = {key: values for key, values in self.settings.items() if _reads(method, key)}
        values |= self.only.get(method, {})
        points = combinations(values)
        order = np.random.default_rng(seed).permutation(len(points)).tolist()
        left = [points[index] for index in order]
        drawn = list[Choices]()
        while left and len(drawn) < self.trials:
            used = Counter(value for point in drawn for value in point.items())
            drawn.append(min(left, key=lambda point: sum(used[value] for value in point.items())))
            left.remove(drawn[-1])
        return drawn


@dataclass(frozen=True)
class Trial:
    """A run of a sweep.

    Attributes:
        method: method of the run.
        rung: number of the budget, from 1.
        number: number of the trial, from 1.
        choices: settings of the trial.
        accuracy: mean validation accuracy over the clients that train.
        loss: mean validation loss over the clients that train.
        folder: folder of the run.
    """

    method: str
    rung: int
    number: int
    choices: Choices
    accuracy: float
    loss: float
    folder: str


def sweep(
    base: RunConfig, plan: Sweep, run: Callable[[RunConfig], tuple[float, float]], out: Path
) -> Iterator[Trial]:
    """Search the settings of every method, and write sweep.json and one METHOD.toml per method.

    Finished runs are not repeated, so that the same command continues an interrupted sweep.

    Args:
        base: settings that are not searched, and the budget of rounds.
        plan: methods, and the values of settings to try.
        run: function that trains, and returns accuracy and loss on validation examples; see
            `validation_figures`.
        out: folder of the sweep.

    Yields:
        Each trial when it ends.

    Raises:
        SamaraError: if a setting does not exist, or a run fails.
    """
    tried: list[Trial] = []
    grids = {method: plan.trials_of(method, base.seed) for method in plan.methods}
    for method, points in grids.items():  # reports all mistakes before the first run
        for choices in points:
            _trial_config(base, method, choices, 1.0, out)
    for method, points in grids.items():
        left = list(range(len(points)))
        for rung in range(1, plan.rungs + 1):
            results = []
            share = 0.5 ** (plan.rungs - rung)
            places = [f"{method}/rung-{rung}/trial-{index + 1}" for index in left]
            runs = [
                _trial_config(base, method, points[index], share, out / place)
                for index, place in zip(left, places, strict=True)
            ]
            for index, place, figures in zip(left, places, run_all(runs, run), strict=True):
                trial = Trial(method, rung, index + 1, points[index], *figures, place)
                results.append(trial)
                yield trial
            results.sort(key=lambda trial: (-trial.accuracy, trial.loss, trial.number))
            tried += results
            left = [trial.number - 1 for trial in results[: math.ceil(len(results) / 2)]]
        chosen = _trial_config(base, method, points[left[0]], 1.0, Path())
        _write(out, f"{method}.toml", tomli_w.dumps(nest(non_default_settings(chosen.flat()))))
    _write(out, SWEEP_FILE, json.dumps([vars(trial) for trial in tried], indent=2) + "\n")


def validation_figures(result: RunResult) -> tuple[float, float]:
    """Return accuracy and loss of the clients' final models on validation examples.

    Returns:
        Means over the clients that trained, at the last validation.

    Raises:
        SamaraError: if no client validated.
    """
    for evaluation in reversed(result.evaluations):
        if evaluation.split == "validation" and evaluation.columns:
            *_, column = evaluation.columns.values()  # the last: personal, or else global
            own = [its for client, its in column.clients.items() if client not in result.newcomers]
            if own:
                accuracy = float(np.mean([figures.accuracy for figures in own]))
                return accuracy, float(np.mean([figures.loss for figures in own]))
    raise SamaraError(
        "no client has validation examples, by which a sweep chooses settings; use data with a "
        "validation split"
    )


def _reads(method: Method, key: str) -> bool:
    """Return whether a method uses a searched setting."""
    if key == SHARE:
        return reads(method, "learning-rate") and reads(method, "personal.learning-rate")
    return reads(method, key)


def _trial_config(
    base: RunConfig, method: Method, choices: Choices, share: float, out: Path
) -> RunConfig:
    """Return the settings of a trial.

    Args:
        base: settings that are not searched.
        method: method of the trial.
        choices: searched settings.
        share: share of the budget of rounds.
        out: folder of the trial's run. An empty path gives the settings of the final run, which has
            no `out` and also evaluates test examples.
    """
    given: dict[str, Any] = dict(choices)
    budget = max(2, round(share * (base.rounds + base.personal.rounds)))
    part = float(given.pop(SHARE, base.personal.rounds / (base.rounds + base.personal.rounds)))
    if not 0 <= part <= 1:
        raise ConfigError(f"{SHARE}: {part} is not a share; use a number from 0 to 1")
    private = min(budget - 1, max(1, round(part * budget)))
    given |= {"rounds": budget - private, "personal.rounds": private}
    given |= {"method": method, "out": str(out.resolve()) if out.name else ""}
    given |= {"evaluate.test": not out.name}
    return RunConfig.of(with_overrides(base.flat(), given), "sweep")


def _write(folder: Path, name: str, text: str) -> None:
    try:
        make_folder(folder)
        write_durably(folder / name, text.encode())
    except OSError as error:
        raise SamaraError(f"{folder / name}: cannot be written: {error.strerror}") from error
