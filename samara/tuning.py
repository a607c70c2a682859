"""The Python function `tune`, which tunes a model on one device, and the class of its result."""

import os
from collections.abc import Mapping
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samara.client.tuning.settings import TuneSettings
from samara.display import hide_widget_warning, is_shown, text_of
from samara.extras import load_pandas
from samara.overrides import settings_of
from samara.simulations.experiments.experiments import run_tuning
from samara.simulations.progress.progress import watched_tuning

if TYPE_CHECKING:
    import pandas


class TuningRun:
    """A finished tuning run in its folder.

    Args:
        folder: folder of the run.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"samara.TuningRun({str(self.folder)!r})"

    def __str__(self) -> str:
        from samara.simulations.report.terminal import print_tuning

        return text_of(lambda console: print_tuning(self.folder, self.result, console))

    @cached_property
    def result(self) -> dict[str, Any]:
        """Content of result.json.

        Raises:
            ConfigError: if the run has not ended, or the file is damaged.
        """
        from samara.client.tuning.run import read_result

        return read_result(self.folder)

    def to_frame(self) -> "pandas.DataFrame":
        """Return a frame with one row per validation; for a baseline, the frame is empty.

        Columns: ``step``, ``examples``, ``loss`` and the task's metric.

        Raises:
            SamaraError: if pandas is not installed.
        """
        return load_pandas().DataFrame(self.result.get("curve", []))


def tune(
    settings: Mapping[str, Any] | None = None, /, *, progress: bool | None = None, **more: Any
) -> TuningRun:
    """Tune a model on this machine, or measure a baseline, and return the finished run.

    >>> run = tune(optimizer="zero-shot", task="messages", data={"validation": 20, "test": 20})
    >>> sorted(run.result["test"])
    ['accuracy', 'auc', 'examples', 'loss']

    Args:
        settings: settings from docs/reference/tune.md, with nested or dotted keys.
        progress: whether to show the progress; by default on a terminal and in a notebook.
        more: settings that replace settings in `settings`, for example ``optimizer="lora"``,
            ``learning_rate=0.1`` or ``model={"path": "folder"}``.

    Raises:
        SamaraError: if the run cannot start or continue.
    """
    wanted = TuneSettings.given(settings_of(settings or {}) | settings_of(more), "tune")
    hide_widget_warning()
    watching = watched_tuning(brief=True) if is_shown(progress) else nullcontext(_unseen)
    return TuningRun(run_tuning(wanted, watching))


def _unseen(done: int, steps: int) -> None:
    """Do nothing, as the callback of a run without a progress display."""
