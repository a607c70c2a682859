"""`samara tune` with overlap and on an emulated accelerator: equal results, or a refusal."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuning import Settings, lasting, small, tuned, tuning_of

from samara.client.tuning.run import read_result, tune
from samara.shared.errors import ConfigError, DeviceError
from samara.shared.model.loading import load_base_model

ModelFolder = Callable[[str], Path]
pytestmark = pytest.mark.slow
COMPARED = ("digest", "curve", "test")
LSP = {
    **{"optimizer": "lsp", "lsp__subspace_size": 8, "lsp__nonzeros": 2},
    **{"lsp__check_frequency": 2, "lsp__learning_steps": 3},
}


@pytest.fixture
def settings(model_folder: ModelFolder, data_file: Path, tmp_path: Path) -> Settings:
    return small(model_folder("causal"), data_file, tmp_path / "run")


@pytest.mark.parametrize("changes", [{"optimizer": "zero-offload"}, LSP])
def test_no_schedule_changes_a_bit(
    changes: dict[str, Any], settings: Settings, tmp_path: Path
) -> None:
    runs: dict[str, dict[str, Any]] = {
        "none": {"offload__schedule": "none"},
        "layer-wise": {"offload__schedule": "layer-wise", "micro_batch": 4},
        "zero": {"offload__schedule": "zero", "micro_batch": 4},
        "checkpointing": {"offload__checkpointing": "on"},
        "emulated": {"offload__bandwidth": 1e8, "offload__memory": 2**30},
    }
    expected: dict[str, Any] | None = None
    for name, more in runs.items():
        found = tuned(tuning_of(settings, out=str(tmp_path / name), **changes, **more))
        expected = expected or found
        assert [found[key] for key in COMPARED] == [expected[key] for key in COMPARED]
    assert not any(thread.name.startswith("offload-") for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("causal", {"optimizer": "fo-adam", "space": "full"}),
        ("causal", {"optimizer": "fo-adam", "space": "lora-fa"}),
        ("causal", {"optimizer": "lora"}),
        ("causal", {"optimizer": "fo-adam", "space": "dora"}),
        ("causal", {"optimizer": "fo-adam", "space": "vera"}),
        ("causal", {"optimizer": "fo-adam", "space": "prefix"}),
        ("encoder", {"optimizer": "zero-offload"}),
        ("masked", {"optimizer": "zero-offload"}),
    ],
)
def test_checkpointing_takes_less_memory_and_changes_no_bit(
    family: str, changes: dict[str, Any], settings: Settings, model_folder: ModelFolder
) -> None:
    kept, again = (
        tune(
            tuning_of(
                settings,
                model__path=str(model_folder(family)),
                adapter__layers="all",
                offload__memory=2**30,
                offload__checkpointing=choice,
                out=f"{settings['out']}-{choice}",
                **changes,
            )
        )
        for choice in ("off", "auto")
    )
    expected, found = lasting(kept), lasting(again)
    assert len({point["loss"] for point in expected["curve"]}) == 3
    assert found == expected
    peaks = [read_result(folder)["emulated"]["peak_memory_bytes"] for folder in (kept, again)]
    assert peaks[1] < peaks[0]


def test_the_result_has_the_cost_on_an_emulated_accelerator(settings: Settings) -> None:
    changes = {"optimizer": "zero-offload", "micro_batch": 0, "offload__bandwidth": 1e8}
    emulated = read_result(tune(tuning_of(settings, **changes)))["emulated"]
    stages = emulated["stage_seconds"]
    assert set(stages) == {"forward", "backward", "offload", "update", "upload", "apply"}
    computing = stages["forward"] + stages["backward"] + stages["apply"]
    assert emulated["seconds"] > max(computing, stages["offload"], stages["update"]) > 0
    numbers = sum(
        weight.numel()
        for weight in load_base_model(str(settings["model.path"])).network.parameters()
    )
    # Two moments and the gradients of all, then updates in the gradients' place, layer by layer.
    assert 12 * numbers <= emulated["host_peak_memory_bytes"] < 16 * numbers
    assert emulated["peak_memory_bytes"] > 4 * numbers


def test_checks_of_projectors_are_a_stage_of_their_own(settings: Settings) -> None:
    changes = LSP | {"offload__memory": 2**30}
    stages = read_result(tune(tuning_of(settings, **changes)))["emulated"]["stage_seconds"]
    assert stages["check"] > 0


def test_without_an_emulated_accelerator_the_result_has_no_such_cost(settings: Settings) -> None:
    assert "emulated" not in read_result(tune(tuning_of(settings, optimizer="zero-offload")))


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


def test_a_continued_run_counts_the_moments_that_it_has_read(
    settings: Settings, tmp_path: Path
) -> None:
    changes = {"optimizer": "fo-adam", "space": "full", "offload__memory": 2**30}
    whole, continued = (
        tuning_of(settings, **changes, out=str(tmp_path / name)) for name in ("whole", "continued")
    )

    def stop(done: int, steps: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(continued, stop)
    peaks = [read_result(tune(run))["emulated"]["peak_memory_bytes"] for run in (whole, continued)]
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize("method", ["fo-adam", "lora", "zero-offload", "lsp"])
def test_too_small_an_accelerator_is_refused(method: str, settings: Settings) -> None:
    with pytest.raises(DeviceError, match="emulated accelerator"):
        tune(tuning_of(settings, optimizer=method, offload__memory=10_000))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "lsp", "offload__memory": 1, "threads": 2}, "set model.torch-device"),
        ({"optimizer": "prge", "offload__memory": 1}, "prge does not read this setting"),
        (
            {"optimizer": "fo-adam", "offload__schedule": "zero"},
            "fo-adam does not read this setting",
        ),
        (
            {"optimizer": "lsp", "offload__memory": 1, "offload__schedule": "none", "threads": 1},
            r"offload\.schedule: an emulated accelerator offloads work to its host",
        ),
        ({"optimizer": "lsp", "offload__slowdown": 0.5}, "greater than or equal to 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    changes: dict[str, Any], message: str, settings: Settings
) -> None:
    with pytest.raises(ConfigError, match=message):
        tuning_of(settings, **changes)
