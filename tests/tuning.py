"""Settings of small tuning runs, and their results without fields that differ between processes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from samara.client.tuning.run import RESULT_FILE, tune
from samara.client.tuning.settings import TuneSettings
from samara.client.tuning.tuning_setup import TuningSetup

Settings = dict[str, Any]
CIRCUMSTANCES = ("model_path", "seconds", "peak_memory_bytes", "versions", "emulated")


def tuning_of(settings: Settings, **changes: Any) -> TuneSettings:
    dotted = {key.replace("__", ".").replace("_", "-"): value for key, value in changes.items()}
    return TuneSettings.of(settings | dotted, "test")


def setup_of(settings: Settings, **changes: Any) -> TuningSetup:
    return TuningSetup(tuning_of(settings, **changes).complete(1))


def small(model: Path, data: Path, out: Path) -> Settings:
    """Settings of four steps on a tiny model, with a validation after every second step."""
    return {
        "model.path": str(model),
        "model.max-length": 40,
        "data.path": str(data),
        "data.train": 24,
        "data.validation": 12,
        "data.test": 12,
        "task": "sst2",
        "steps": 4,
        "batch": 4,
        "learning-rate": 0.001,
        "validate-every": 2,
        "adapter.layers": "top:2",
        "threads": 1,
        "out": str(out),
    }


def lasting(folder: Path) -> dict[str, Any]:
    """The fields of a run's result that do not depend on time and place."""
    result: dict[str, Any] = json.loads((folder / RESULT_FILE).read_text())
    return {key: value for key, value in result.items() if key not in CIRCUMSTANCES}


def tuned(settings: TuneSettings) -> dict[str, Any]:
    return lasting(tune(settings))


def stopping_after(steps: int) -> Callable[[int, int], None]:
    def on_step(done: int, whole: int) -> None:
        if done == steps:
            raise KeyboardInterrupt

    return on_step
