"""`samara tune` with overlap and on an emulated accelerator: equal results, or a refusal."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuning import Settings, small, tuned, tuning_of

from client.tuning.run import tune
from shared.errors import ConfigError, DeviceError

ModelFolder = Callable[[str], Path]
pytestmark = pytest.mark.slow
COMPARED = ("digest", "curve", "test")
LSP = {"method": "lsp", "lsp__subspace_size": 8, "lsp__nonzeros": 2, "lsp__check_frequency": 2}


@pytest.fixture
def settings(model_folder: ModelFolder, data_file: Path, tmp_path: Path) -> Settings:
    return small(model_folder("causal"), data_file, tmp_path / "run")


@pytest.mark.parametrize("changes", [{"method": "zero-offload"}, LSP | {"lsp__learning_steps": 3}])
def test_no_schedule_changes_a_bit(
    changes: dict[str, Any], settings: Settings, tmp_path: Path
) -> None:
    runs: dict[str, dict[str, Any]] = {
        "none": {"offload__schedule": "none"},
        "layer-wise": {"offload__schedule": "layer-wise", "micro_batch": 4},
        "zero": {"offload__schedule": "zero", "micro_batch": 4},
        "emulated": {"offload__bandwidth": 1e8, "offload__memory": 2**30},
    }
    expected: dict[str, Any] | None = None
    for name, more in runs.items():
        found = tuned(tuning_of(settings, out=str(tmp_path / name), **changes, **more))
        expected = expected or found
        assert [found[key] for key in COMPARED] == [expected[key] for key in COMPARED]
    assert not any(thread.name.startswith("offload-") for thread in threading.enumerate())


@pytest.mark.parametrize("schedule", ["layer-wise", "zero"])
def test_an_interrupted_run_goes_on_under_another_schedule(
    schedule: str, settings: Settings, tmp_path: Path
) -> None:
    whole = tuned(tuning_of(settings, **LSP, out=str(tmp_path / "whole"), micro_batch=3))

    def stop(done: int, whole: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(tuning_of(settings, **LSP, micro_batch=3, offload__schedule=schedule), stop)
    assert not any(thread.name.startswith("offload-") for thread in threading.enumerate())
    assert tuned(tuning_of(settings, **LSP, micro_batch=3)) == whole


@pytest.mark.parametrize("method", ["fo-adam", "lora", "zero-offload", "lsp"])
def test_too_small_an_accelerator_is_refused(method: str, settings: Settings) -> None:
    with pytest.raises(DeviceError, match="emulated accelerator"):
        tune(tuning_of(settings, method=method, offload__memory=10_000))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "lsp", "offload__memory": 1, "threads": 2}, "set model.torch-device"),
        ({"method": "prge", "offload__memory": 1}, "prge does not read it"),
        ({"method": "fo-adam", "offload__schedule": "zero"}, "fo-adam does not read it"),
        ({"method": "lsp", "offload__slowdown": 0.5}, "greater than or equal to 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    changes: dict[str, Any], message: str, settings: Settings
) -> None:
    with pytest.raises(ConfigError, match=message):
        tuning_of(settings, **changes)
