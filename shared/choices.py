"""The settings that a run chooses by itself, by rules that hold for every data set and model.

A scenario that leaves `adapter.layers`, `steps`, `queries` or `batch` open gets the values that
measurements on several data sets and models led to (docs/step-size.md). They follow from the
settings and the task alone, and a run that sets the same values is the same run.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from shared.errors import TaskError
from shared.sections import EMBEDDED_DATA
from shared.tasks.catalog import load_task
from shared.tasks.kinds import ChoiceTask, ClassificationTask

AUTO = "auto"
READOUT = "readout"
INNER = "top:1"
"""The adapted layers where a readout alone is not possible."""
READOUT_STEPS, INNER_STEPS = 16, 2
READOUT_BATCH, INNER_BATCH = 10_000, 32
QUERIES, MOST_QUERIES = 16, 64
OPEN: dict[str, str | int] = {"adapter.layers": AUTO, "steps": 0, "queries": 0, "batch": 0}
"""The values that leave a setting open; they are the defaults."""


class Choice(NamedTuple):
    """A value that follows from the other settings.

    Attributes:
        value: the value.
        reason: why this value.
    """

    value: str | int
    reason: str


def choose(flat: Mapping[str, Any]) -> dict[str, Choice]:
    """Return the values of all settings that may be left open, whether they are or not.

    Args:
        flat: settings by dotted key; `auto`, 0 and missing ones are open.
    """
    layers = Choice(
        READOUT,
        "the model runs once per example, and in measurements a readout gained more for it than "
        "adapters inside the model",
    )
    if flat.get("adapter.basis"):
        layers = Choice(INNER, "a basis is for adapters inside the model")
    elif flat.get("fleet.devices"):
        layers = Choice(INNER, "emulated devices are timed with adapters inside the model")
    given = flat.get("adapter.layers", AUTO)
    if flat.get("adapter.start") and given != AUTO:
        layers = Choice(given, "the adapter begins with a start, which has these layers")
    if (layers.value if given == AUTO else given) == READOUT:
        return {
            "adapter.layers": layers,
            "steps": Choice(READOUT_STEPS, "steps of a readout cost no forward pass"),
            "queries": _readout_queries(flat),
            "batch": Choice(READOUT_BATCH, "a readout's step can take all examples of a client"),
        }
    reason = "every step sends its examples through the model"
    return {
        "adapter.layers": layers,
        "steps": Choice(INNER_STEPS, reason),
        "queries": Choice(QUERIES, reason),
        "batch": Choice(INNER_BATCH, reason),
    }


def _readout_queries(flat: Mapping[str, Any]) -> Choice:
    """Return the directions of a readout's step, in proportion to its rows: the labels but one.

    A task that cannot be read counts as one with two labels here; loading it reports the error.
    """
    labels = 2
    try:
        task = load_task(str(flat.get("task", EMBEDDED_DATA)))
    except TaskError:
        task = None
    if isinstance(task, ClassificationTask):
        labels = len(task.words)
    elif isinstance(task, ChoiceTask) and not task.list_names:
        labels = len(task.candidates)
    queries = min(QUERIES * (labels - 1), MOST_QUERIES)
    return Choice(queries, f"{QUERIES} for each label but one, at most {MOST_QUERIES}")


def with_choices(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted key with a value for each of those that were left open."""
    chosen = {
        key: choice.value
        for key, choice in choose(flat).items()
        if _is_open(flat.get(key, OPEN[key]), OPEN[key])
    }
    return {**flat, **chosen}


def _is_open(value: object, mark: str | int) -> bool:
    return type(value) is type(mark) and value == mark


def automatic_values(flat: Mapping[str, Any]) -> dict[str, str]:
    """Return the reasons for the settings whose values are those that a run chooses by itself."""
    return {key: choice.reason for key, choice in choose(flat).items() if flat[key] == choice.value}
