"""Runs of `samara tune` with streamed blocks give the result of a resident model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tuning import Settings, lasting, small, tuned, tuning_of
from typer.testing import CliRunner

from samara.client.tuning.run import tune
from samara.client.tuning.run_space import BLOCKS_FOLDER
from samara.client.tuning.settings import TuneSettings
from samara.command import app
from samara.shared.errors import ConfigError


@pytest.fixture
def settings(model_folder: Callable[[str], Path], data_file: Path, tmp_path: Path) -> Settings:
    return small(model_folder("causal"), data_file, tmp_path / "run")


def at(settings: Settings, name: str) -> Settings:
    return settings | {"out": f"{settings['out']}-{name}"}


def results_of(result: dict[str, Any]) -> dict[str, Any]:
    config = {k: v for k, v in result["config"].items() if not k.startswith("model.stream")}
    return result | {"config": config}


@pytest.mark.parametrize(
    ("method", "space", "tier"),
    [
        ("prge", "lora-fa", "disk"),
        ("mezo", "full", "disk"),
        ("mezo", "full", "host"),
        ("mezo-momentum", "full", "disk"),
        ("mezo", "lora", "disk"),
        ("mezo", "prefix", "disk"),
        ("zero-shot", "auto", "disk"),
    ],
)
def test_a_streamed_run_ends_with_the_result_of_a_resident_one(
    method: str, space: str, tier: str, settings: Settings
) -> None:
    asked = {"optimizer": method, "space": space}
    if method == "zero-shot":
        asked = {"optimizer": method}
        settings = {k: v for k, v in settings.items() if k != "learning-rate"}
    resident = tuned(tuning_of(at(settings, "resident"), **asked))
    folder = tune(tuning_of(at(settings, "streamed"), **asked, model__stream=tier))
    assert results_of(lasting(folder)) == results_of(resident)
    assert not (folder / BLOCKS_FOLDER).exists()


def stop(done: int, whole: int) -> None:
    if done == 3:
        raise KeyboardInterrupt


@pytest.mark.parametrize("travels", ["bfloat16", "float8"])
@pytest.mark.parametrize("tier", ["disk", "host"])
def test_what_travels_compressed_goes_on_to_the_same_bits(
    travels: str, tier: str, settings: Settings
) -> None:
    def asked(name: str) -> TuneSettings:
        more = {"optimizer": "mezo", "space": "full", "model__stream": tier}
        return tuning_of(at(settings, name), **more, stream_compression=travels)

    with pytest.raises(KeyboardInterrupt):
        tune(asked("stopped"), stop)
    assert results_of(tuned(asked("stopped"))) == results_of(tuned(asked("whole")))


@pytest.mark.parametrize("more", [{"space": "full"}, {"space": "lora", "model__stream": "disk"}])
def test_compression_is_for_all_parameters_that_stream(
    more: dict[str, str], settings: Settings
) -> None:
    with pytest.raises(ConfigError, match="set space to full and model"):
        tuning_of(settings, optimizer="mezo", stream_compression="float8", **more)


def test_a_run_that_is_stopped_goes_on_streamed(settings: Settings) -> None:
    resident = tuned(tuning_of(at(settings, "resident"), optimizer="mezo", space="full"))
    streamed = tuning_of(settings, optimizer="mezo", space="full", model__stream="disk")
    with pytest.raises(KeyboardInterrupt):
        tune(streamed, stop)
    assert results_of(tuned(streamed)) == results_of(resident)


def test_first_order_cannot_be_streamed(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="the backward pass of fo-adam needs all blocks at once"):
        tuning_of(settings, optimizer="fo-adam", model__stream="disk")


def test_the_commands_know_it() -> None:
    command = ["device", "estimate", "--device", "orin-nano-4gb", "--model", "llama2-7b"]

    def said(*more: str) -> str:
        return CliRunner().invoke(app, [*command, *more], env={"COLUMNS": "200"}).output

    assert "model.stream=disk" in said("--quantization", "nf4")
    assert "fits: " in said("--quantization", "nf4", "--set", "model.stream=auto")
    assert "fits: " in said("--quantization", "nf4", "--set", "model.stream=disk")
