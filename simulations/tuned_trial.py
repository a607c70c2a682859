"""The runs of a sweep of `samara tune`: one in a process of its own, and all in TensorBoard."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from samara.client.tuning.run import read_result, tune
from samara.client.tuning.settings import TuneSettings
from samara.client.tuning.tuning_curves import CURVES_FOLDER
from samara.simulations.tuning_grid import Trial


def tuned_result(settings: TuneSettings) -> Mapping[str, Any]:
    """Make a run, or find it finished; say where it is, and return its result.

    Raises:
        SamaraError: if it cannot begin, or cannot go on.
    """
    folder = tune(settings)
    print(f"{folder}: finished, on {settings.model.torch_device}", flush=True)
    return read_result(folder)


def compare_in_tensorboard(
    trials: Sequence[Trial], results: Mapping[str, Mapping[int, Mapping[str, Any]]], out: Path
) -> None:
    """Write settings and metrics of all runs for TensorBoard's comparison, if it is installed.

    Args:
        trials: trials of one grid.
        results: their results by name and seed.
        out: folder of the runs, whose curves are beside it.
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
