"""The command `samara tune`, which makes one run, or one run per seed and point of a grid."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from samara.client.tuning.settings import TuneSettings


def tune(
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="prge, mezo, mezo-momentum, mezo-adam, fo-adam, fo-sgd, lora, zero-offload, "
            "lsp, zero-shot, icl, linear-probe; default prge."
        ),
    ] = None,
    space: Annotated[
        str | None, typer.Option(help="lora-fa, lora, dora, vera, prefix, head, full, linear.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Name of a shipped task, or task file.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Model folder, or model name on the hub.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="File, folder, or data set on the hub.")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of steps; default 1,000.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate; by default chosen automatically.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed of the data draw, batches and directions.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Run once per seed, such as 0,1,2, and show a table.")
    ] = None,
    sweep: Annotated[
        Path | None, typer.Option(help="TOML file with lists of values; run each combination.")
    ] = None,
    devices: Annotated[
        str | None, typer.Option(help="Devices for parallel runs, such as cuda:0,cuda:1.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Override a setting (docs/reference/tune.md): key=value. Repeatable."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results; default runs/TASK-ID.")
    ] = None,
) -> None:
    """Tune a model, or measure a baseline, on one device with a few randomly drawn examples.

    Example: samara tune --optimizer mezo --task sst2 --model MODEL --data DATA
    """
    from samara.client.tuning.settings import TuneSettings
    from samara.shared.errors import ConfigError
    from samara.shared.settings.setting import parse_assignment
    from samara.simulations.experiments.experiments import run_tuning
    from samara.simulations.progress.progress import stoppable, watched_tuning
    from samara.simulations.report.terminal import print_next, print_tuning

    options: dict[str, Any] = {
        "optimizer": optimizer,
        "space": space,
        "task": task,
        "model.path": model,
        "data.path": data,
        "steps": steps,
        "learning-rate": learning_rate,
        "seed": seed,
        "out": str(out.resolve()) if out else None,
    }
    given = {key: value for key, value in options.items() if value is not None}
    given |= dict(parse_assignment(assignment) for assignment in settings or [])
    if seeds is not None or sweep is not None:
        _tune_grid(given, seeds, sweep, devices)
        return
    if devices:
        raise ConfigError("--devices: needs several runs; add --seeds or --sweep")
    wanted = TuneSettings.given(given, "tune")
    with stoppable():
        folder = run_tuning(wanted, watched_tuning())
    from samara.client.tuning.run import read_result

    print_tuning(folder, result := read_result(folder))
    print_next(folder, result)


def _tune_grid(
    given: dict[str, Any], seeds: str | None, sweep: Path | None, devices: str | None
) -> None:
    """Run every combination of a sweep with every seed, and print the table of means."""
    from rich.console import Console

    from samara.shared.errors import ConfigError
    from samara.shared.tasks.catalog import load_task
    from samara.shared.tasks.embedded import check_data_is_given
    from samara.simulations.experiments.experiments import parse_seeds, run_tuning
    from samara.simulations.experiments.tuning_grid import (
        compare_in_tensorboard,
        grid_table,
        make_trials,
        read_grid,
        run_trials,
        tuned_result,
    )
    from samara.simulations.progress.progress import stoppable, watched_tuning

    if seeds is not None and "seed" in given:
        raise ConfigError("--seeds: names all seeds; leave out --seed")
    chosen = [given.pop("seed", 0)] if seeds is None else parse_seeds(seeds)
    grid = read_grid(sweep) if sweep is not None else [{}]
    out = str(given.pop("out", ""))
    places = [name.strip() for name in devices.split(",")] if devices else []
    if places and "model.torch-device" in given:
        raise ConfigError("--devices: names the devices of all runs; leave out model.torch-device")
    trials = make_trials(given, grid, chosen, out, places)
    for trial in trials:
        for settings in trial.runs.values():
            check_data_is_given(load_task(settings.task), settings.data.path)

    def run_one(settings: "TuneSettings") -> Mapping[str, Any]:
        folder = run_tuning(settings, watched_tuning())
        from samara.client.tuning.run import read_result

        return read_result(folder)

    with stoppable():
        is_parallel = len(places) > 1
        results = run_trials(trials, tuned_result if is_parallel else run_one, max(1, len(places)))
        if out:
            compare_in_tensorboard(trials, results, Path(out))
        Console().print(grid_table(results))
