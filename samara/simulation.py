"""The Python function `simulate`, which runs simulated federations, and its result classes."""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

from samara.display import hide_widget_warning, is_shown, text_of
from samara.extras import load_pandas
from samara.overrides import Scenario, config_of
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig
from samara.shared.storage.files import write_requested
from samara.simulations.comparison.columns import client_columns
from samara.simulations.comparison.comparison import Comparison as _Comparison
from samara.simulations.comparison.comparison import compare_runs
from samara.simulations.comparison.measure import named_figures
from samara.simulations.comparison.seeds import SeedInterval, describe_seeds, seed_intervals
from samara.simulations.experiments.experiments import run_all, run_federation, with_seeds
from samara.simulations.progress.progress import logged, watched

if TYPE_CHECKING:
    import pandas

    from samara.models import Model

Folder = str | os.PathLike[str]


class Comparison(_Comparison):
    """A comparison of finished runs for each client; `print` shows its tables."""

    def __str__(self) -> str:
        from samara.simulations.comparison.tables import render_comparison

        parts = [each for part in render_comparison(self) for each in (part, "")]
        return text_of(lambda console: console.print(*parts, sep="\n"))

    def to_frame(self) -> "pandas.DataFrame":
        """Return a frame with one row per tested difference.

        A difference is in accuracy, from 0 to 1, or in saved bits per byte.

        Raises:
            SamaraError: if pandas is not installed.
        """
        rows = [
            {
                "of": self.name_of(row.condition),
                "against": self.name_of(row.against),
                "difference": row.quality.mean,
                "low": row.quality.low,
                "high": row.quality.high,
                "p": row.p,
                "gaining": row.quality.gaining,
                "losing": row.quality.losing,
            }
            for row in self.tested
        ]
        return load_pandas().DataFrame(rows)

    def save_page(self, file: Folder) -> Path:
        """Write the comparison as ``samara compare --html`` does, and return the page's path.

        Raises:
            SamaraError: if the page cannot be written, or the extra `report` is not installed.
        """
        from samara.simulations.report.html import PAGE_KIND, page_of

        write_requested(Path(file), page_of(self).encode(), PAGE_KIND)
        return Path(file)


class Run:
    """A finished run in its folder.

    >>> settings = {"rounds": 1, "steps": 1, "data.clients": 2, "personal.rounds": 1}
    >>> run = simulate(settings, personal={"learning_rate": 0.1})
    >>> frame = run.to_frame()
    >>> sorted(set(frame["model"]))  # doctest: +NORMALIZE_WHITESPACE
    ['base rate', 'global', 'label bias', 'local-only', 'majority', 'personalized', 'zero-shot']
    >>> frame[frame["model"] == "global"]["examples"].tolist()
    [100, 100]
    >>> run.compare().to_frame()["of"].unique().tolist()
    ['personalized']
    >>> run.personal_model(1).predict(["what a day"])[0] in ("hated", "loved")
    True

    Args:
        folder: folder of the run.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"samara.Run({str(self.folder)!r})"

    def __str__(self) -> str:
        from samara.simulations.report.terminal import print_result

        return text_of(lambda console: print_result(self.folder, self.result, console))

    @cached_property
    def result(self) -> RunResult:
        """Content of result.json: settings, rounds, evaluations, costs.

        Raises:
            SamaraError: if the run has not ended, or the file is damaged.
        """
        return RunResult.read(self.folder)

    @property
    def config(self) -> RunConfig:
        """Settings of the run, which `simulate` accepts as a scenario."""
        return RunConfig.of(self.result.config, str(self.folder))

    def to_frame(self) -> "pandas.DataFrame":
        """Return a frame with one row per client and model, measured on the client's test examples.

        The column ``model`` names a model or baseline, such as zero-shot, global or personalized.
        Other columns are ``client`` and ``examples``. Tasks with labels also have ``accuracy``,
        ``macro_f1``, ``loss`` and, with two labels, ``auc``. A generation also has ``tokens``,
        ``accuracy`` (of tokens), ``loss``, ``perplexity`` and ``bits_per_byte``.

        Raises:
            SamaraError: if no client evaluated on test examples, or pandas is not installed.
        """
        rows = [
            {
                "client": client,
                "model": name,
                **named_figures(own),
            }
            for name, figures in client_columns(self.result).items()
            for client, own in figures.items()
        ]
        return load_pandas().DataFrame(rows)

    def compare(self, *others: "Run | Runs | Folder") -> Comparison:
        """Compare the models of this run, or this run with other runs, as ``samara compare`` does.

        Args:
            others: other runs, or their folders. Runs that differ only in their seed are
                repetitions.

        Raises:
            SamaraError: if the runs cannot be compared.
        """
        return _compared([self, *others])

    def global_model(self, client: int | None = None) -> "Model":
        """Return the federation's model, or the model of one cluster.

        Args:
            client: in a run with clusters, a client of the cluster whose model is returned.

        Raises:
            SamaraError: if a ledger is damaged, or the base model cannot be used.
        """
        return self._model(client if self.result.groups else None)

    def personal_model(self, client: int | str) -> "Model":
        """Return the personal model of one client.

        Args:
            client: number of the client, or name of the user whose data the client has.

        Raises:
            SamaraError: if there is no such client, the client has no private rounds, or its ledger
                or the base model cannot be used.
        """
        return self._model(self.result.client_of(str(client)))

    def _model(self, client: int | None) -> "Model":
        from samara.models import Model

        run, loaded = self._loaded
        return Model(run, loaded, client)

    @cached_property
    def _loaded(self) -> Any:
        from samara.simulations.exports.adapter import FinishedRun
        from samara.simulations.exports.quick_look import LoadedModel

        run = FinishedRun.at(self.folder)
        return run, LoadedModel(run)


class Runs(Sequence[Run]):
    """Finished runs that differ only in their seed, and in a data split that depends on the seed.

    >>> settings = {"rounds": 1, "steps": 1, "data.clients": 2, "personal.rounds": 0}
    >>> runs = simulate(settings, seeds=[0, 1])
    >>> len(runs), runs[1].config.seed
    (2, 1)
    >>> runs.to_frame()["seed"].unique().tolist()
    [0, 1]
    >>> mean = runs.intervals()["global"].mean
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = tuple(runs)

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> "Run | Self":
        if isinstance(index, slice):
            return type(self)(self._runs[index])
        return self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return f"samara.Runs({list(self._runs)!r})"

    def __str__(self) -> str:
        from samara.simulations.report.terminal import seeds_table

        table = seeds_table(self.intervals())
        table.caption = describe_seeds([run.result.config for run in self])
        return text_of(lambda console: console.print(table))

    def intervals(self) -> dict[str, SeedInterval]:
        """Return each model's mean accuracy with its 95 % confidence interval over seeds.

        Raises:
            SamaraError: if no client evaluated on test examples.
        """
        return seed_intervals([run.result for run in self])

    def to_frame(self) -> "pandas.DataFrame":
        """Return the frames of all runs as one frame, with a first column ``seed``.

        Raises:
            SamaraError: as in `Run.to_frame`.
        """
        frames = {int(run.result.config["seed"]): run.to_frame() for run in self}
        return (
            load_pandas().concat(frames, names=["seed"]).reset_index("seed").reset_index(drop=True)
        )

    def compare(self, *others: "Run | Runs | Folder") -> Comparison:
        """Compare these runs, with each client's results averaged over them, with other runs.

        Args:
            others: other runs, or their folders.
        """
        return _compared([self, *others])


@overload
def simulate(
    scenario: Scenario, *, seeds: None = None, progress: bool | None = None, **settings: Any
) -> Run: ...
@overload
def simulate(
    scenario: Scenario, *, seeds: Sequence[int], progress: bool | None = None, **settings: Any
) -> Runs: ...
def simulate(
    scenario: Scenario,
    *,
    seeds: Sequence[int] | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Run | Runs:
    """Train a federation of simulated clients on this machine, and return the finished run.

    A run that is already finished is returned without training, and an interrupted run continues.

    >>> run = simulate({"rounds": 1, "steps": 1, "data": {"clients": 2}, "personal.rounds": 0})
    >>> run.result.final_round
    1
    >>> run.global_model().predict(["what a day"])[0] in ("hated", "loved")
    True

    Args:
        scenario: name of a shipped scenario, path of a scenario file, or a mapping of settings with
            nested or dotted keys. An empty mapping gives eight clients with generated messages.
        seeds: seeds of several runs, which are returned as `Runs`. Each run draws a separate data
            split, unless the scenario or the settings contain `data.seed`. The settings of a
            finished run always contain `data.seed`.
        progress: whether to show a progress bar with the remaining time on standard error. By
            default the bar is shown on a terminal and in a notebook. Without the bar, the logger
            ``samara.simulation`` reports progress at level INFO.
        settings: settings that replace settings of the scenario, for example ``learning_rate=0.1``,
            ``data={"clients": 4}``, ``**{"data.clients": 4}`` or ``out="runs/first"``.

    Raises:
        SamaraError: if the run cannot start or continue.
    """
    if seeds is None:
        return Run(_simulate(config_of(scenario, settings), progress))
    runs = with_seeds(lambda seed: config_of(scenario, settings | {"seed": seed}), seeds)
    return Runs(list(run_all(list(runs.values()), lambda each: Run(_simulate(each, progress)))))


def _simulate(config: RunConfig, progress: bool | None) -> Path:
    hide_widget_warning()
    watching = watched(config, brief=True) if is_shown(progress) else logged(config)
    return run_federation(config, watching)


def _compared(runs: Sequence[Run | Runs | Folder]) -> Comparison:
    folders: list[Path] = []
    for run in runs:
        if isinstance(run, Runs):
            folders += [each.folder for each in run]
        else:
            folders.append(run.folder if isinstance(run, Run) else Path(run))
    return Comparison(compare_runs(folders).runs)
