"""Experiments: all runs of one command, planned before the first run starts.

A plan is a list of settings, with an entry for each combination of values and each seed. Finished
runs are not repeated. The same command therefore continues an interrupted plan.
"""

import itertools
import logging
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from samara.client.tuning.settings import TuneSettings
from samara.shared.errors import ConfigError
from samara.shared.settings.config import RunConfig
from samara.shared.settings.setting import Scalar
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.embedded import check_data_is_given

if TYPE_CHECKING:
    from samara.simulations.simulate import Engine

Choices = Mapping[str, Scalar]
"""Values of settings by dotted key."""
Planned = TypeVar("Planned", RunConfig, TuneSettings)
Result = TypeVar("Result")


def read_sweep_file(file: Path) -> dict[str, Any]:
    """Return the content of a TOML file that names the values to try.

    Raises:
        ConfigError: if the file cannot be read or is not valid TOML.
    """
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: the sweep file cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error


def combinations(values: Mapping[str, Sequence[Scalar]]) -> list[Choices]:
    """Return every combination of the settings' values; the last key varies fastest."""
    return [
        dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())
    ]


def parse_seeds(text: str) -> list[int]:
    """Parse a list of seeds such as ``0,1,2``.

    Raises:
        ConfigError: if the text is not such a list.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--seeds {text}: not a list of seeds; give integers with commas, such as 0,1,2"
        ) from None


def with_seeds(settings_of: Callable[[int], Planned], seeds: Sequence[int]) -> dict[int, Planned]:
    """Return the settings of a run for each seed, with a subfolder per seed if `out` is set.

    Args:
        settings_of: function that returns the settings for a seed.
        seeds: distinct seeds.

    Raises:
        ConfigError: if there is no seed, a seed occurs twice, or the settings are invalid.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"seeds {', '.join(map(str, seeds))}: give at least one seed, and each seed only once"
        )
    runs = {seed: settings_of(seed) for seed in seeds}
    return {
        seed: run.with_values({"out": str(Path(run.out) / f"seed-{seed}")}) if run.out else run
        for seed, run in runs.items()
    }


def run_all(
    runs: Sequence[Planned], run: Callable[[Planned], Result], processes: int = 1
) -> Iterator[Result]:
    """Run all settings one after the other or in parallel; yield the results in their order.

    Args:
        runs: settings of the runs.
        run: function that runs settings, unless the run is finished, and returns the run's result.
            With several processes, the function must be importable from a module.
        processes: number of processes. Run i is assigned to process i mod `processes`.
    """
    if processes == 1:
        yield from map(run, runs)
        return
    from joblib import Parallel, delayed

    found = Parallel(n_jobs=processes)(
        delayed(_run_in_turn)(runs[own::processes], run) for own in range(processes)
    )
    for index in range(len(runs)):
        yield found[index % processes][index // processes]


def _run_in_turn(runs: Sequence[Planned], run: Callable[[Planned], Result]) -> list[Result]:
    return list(map(run, runs))


def run_federation(
    config: RunConfig,
    watching: AbstractContextManager[Callable[[str, int], None]],
    engine: "Engine" = "in-process",
    cohorts_from: Path | None = None,
    homes: Sequence[Path] = (),
    writes: bool = True,
) -> Path:
    """Run a simulated federation, unless it is already finished, and return its folder.

    Libraries are loaded while progress is shown.

    Args:
        config: settings of the run.
        watching: context manager of the run, which yields a function to call for each message.
        engine: see `samara.simulations.simulate.simulate`.
        cohorts_from: see `samara.simulations.simulate.simulate`.
        homes: see `samara.simulations.simulate.simulate`.
        writes: whether the models of a generation write passages at the end.

    Raises:
        SamaraError: if the run cannot start or continue.
    """
    check_data_is_given(load_task(config.task), config.data.path)
    with watching as on_message:
        from samara.simulations.experiments.passage_writer import write_missing_passages
        from samara.simulations.simulate import simulate

        # the import of flwr has set another level
        logging.getLogger("flwr").setLevel(logging.WARNING)
        folder = simulate(config, on_message, engine, cohorts_from, homes)
        if writes:
            write_missing_passages(folder)
    return folder


def run_tuning(
    settings: TuneSettings, watching: AbstractContextManager[Callable[[int, int], None]]
) -> Path:
    """Run `samara tune` with these settings, unless the run is finished, and return its folder.

    Libraries are loaded while progress is shown.

    Args:
        settings: settings of the run.
        watching: context manager of the run, which yields a function to call for each step.

    Raises:
        SamaraError: if the run cannot start or continue.
    """
    check_data_is_given(load_task(settings.task), settings.data.path)
    with watching as on_step:
        from samara.client.tuning.run import tune

        return tune(settings, on_step)
