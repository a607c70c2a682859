"""A table of a paper: its measurements, and the corresponding measurements or predictions here.

A table is a TOML file beside this module. Each row has the paper's number for every column. It also
has settings of `samara tune`, a question to the time and memory model, or the reason why nothing is
run. Rows that train name their hyperparameters, which are in ``hyperparameters.toml``.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

FOLDER = Path(__file__).parent


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Prediction(_Part):
    """A question to the time and memory model (`samara.devices.hardware`).

    Attributes:
        step: P-RGE on adapters, zeroth order on all parameters, or first order.
        quantity: seconds of a step, tokens per second, peak memory, or memory of the weights alone.
            nvidia-smi and the papers write MB and GB for MiB and GiB.
        model: name of a shape, in which ``{}`` stands for the column, or a model folder.
        device: name of a profile.
        work: fields of the step's workload: `roofline.Workload`,
            `full_parameter_estimate.FullParameterWorkload`, `offload_estimate.FirstOrderWorkload`.
        fitted: columns to whose number a constant of the model or of the profile was fitted.
    """

    step: Literal["adapters", "all-parameters", "first-order"] = "adapters"
    quantity: Literal["seconds", "tokens/s", "MiB", "GiB", "GiB of weights"] = "seconds"
    model: str
    device: str
    work: dict[str, Any] = Field(default_factory=dict)
    fitted: list[str | int] = Field(default_factory=list)


class Hyperparameters(_Part):
    """The settings and the grid with which a paper trained some rows.

    Attributes:
        source: paper and table.
        settings: settings of `samara tune`.
        grid: searched values of settings; all combinations are searched.
        together: combinations of settings that the paper searched, each with the whole grid.
        tasks: grids of the tasks with other grids.
    """

    source: str
    settings: dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, list[Any]] = Field(default_factory=dict)
    together: list[dict[str, Any]] = Field(default_factory=lambda: [dict[str, Any]()])
    tasks: dict[str, dict[str, list[Any]]] = Field(default_factory=dict)

    def trials(self, task: str) -> list[dict[str, Any]]:
        """Return the settings of every point of the grid, including settings not searched."""
        grid = self.grid | self.tasks.get(task, {})
        return [
            {**self.settings, **some, **dict(zip(grid, point, strict=True))}
            for some in self.together
            for point in product(*grid.values())
        ]

    def values(self, task: str) -> dict[str, list[Any]]:
        """Return all of the paper's values of each setting for a task."""
        trials = self.trials(task)
        keys = {key: None for trial in trials for key in trial}
        return {key: list(dict.fromkeys(trial[key] for trial in trials)) for key in keys}


class OnTask(_Part):
    """The settings of a row on a task, if they differ from the row's settings.

    Attributes:
        settings: settings of `samara tune` in addition to the row's.
        hyperparameters: as in `Row`.
    """

    settings: dict[str, Any] = Field(default_factory=dict)
    hyperparameters: str


class Row(_Part):
    """A row of a table.

    Attributes:
        name: name of the row.
        paper: the paper's number for every column; null if it has no number.
        settings: settings of `samara tune`; empty if the row is not trained here.
        hyperparameters: name of the row's hyperparameters in the paper; empty if the row trains
            nothing.
        tasks: other settings of the row on some tasks.
        predict: question to the time and memory model.
        missing: reason why nothing is run or predicted.
    """

    name: str
    paper: list[float | str]
    settings: dict[str, Any] = Field(default_factory=dict)
    hyperparameters: str = ""
    tasks: dict[str, OnTask] = Field(default_factory=dict)
    predict: Prediction | None = None
    missing: str = ""

    @model_validator(mode="after")
    def _is_one_of_three(self) -> Self:
        if sum(map(bool, (self.settings, self.predict, self.missing))) != 1:
            raise ValueError(f"{self.name}: give exactly one of settings, predict and missing")
        return self

    def on(self, task: str) -> tuple[dict[str, Any], Hyperparameters | None]:
        """Return the row's settings on a task, and the paper's hyperparameters for it."""
        own, name = self.settings, self.hyperparameters
        if other := self.tasks.get(task):
            own, name = own | other.settings, other.hyperparameters
        return own, read_hyperparameters()[name] if name else None


class PaperTable(_Part):
    """A table of a paper.

    Attributes:
        title: paper, number and subject.
        model: model that the paper trained or timed.
        differs: sentences about differences here, besides model, steps and data.
        columns: tasks of `samara tune` or, with `vary`, values of a field of the predicted step.
        vary: field of the predicted step whose values are the columns, or ``model``; empty for
            tasks.
        benchmark: module, with its options, that measures the table's rows on a small model.
        rows: rows in the paper's order.
    """

    title: str
    model: str
    differs: list[str] = Field(default_factory=list)
    columns: list[str | int]
    vary: str = ""
    benchmark: str = ""
    rows: list[Row]

    @model_validator(mode="after")
    def _has_a_number_in_every_column(self) -> Self:
        for row in self.rows:
            if len(row.paper) != len(self.columns):
                raise ValueError(
                    f"{row.name}: the row has {len(row.paper)} numbers for {len(self.columns)} "
                    f"columns"
                )
        return self


def table_names() -> list[str]:
    """Return the names of all tables."""
    return sorted(file.stem for file in FOLDER.glob("*-*.toml"))


@cache
def read_hyperparameters() -> dict[str, Hyperparameters]:
    """Read the papers' hyperparameters, by name."""
    content = tomllib.loads((FOLDER / "hyperparameters.toml").read_text("utf-8"))
    return {name: Hyperparameters.model_validate(each) for name, each in content.items()}


def read_table(name: str) -> PaperTable:
    """Read a table by its name, such as ``mezo-1``."""
    content: Mapping[str, Any] = tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8"))
    return PaperTable.model_validate(content)
