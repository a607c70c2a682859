"""What a run chooses by itself where its settings leave it open."""

from pathlib import Path

import pytest

from client.tuning.settings import TuneSettings
from shared.choices import automatic_values
from shared.config import RunConfig
from shared.sections import AdapterSettings


def of(**settings: object) -> RunConfig:
    return RunConfig.of({key.replace("__", "."): value for key, value in settings.items()}, "test")


def test_a_run_with_nothing_set_trains_a_readout_on_all_examples() -> None:
    config = RunConfig()
    assert (config.adapter.layers, config.steps, config.batch) == ("readout", 16, 10_000)
    assert set(automatic_values(config.flat())) == {"adapter.layers", "steps", "queries", "batch"}


@pytest.mark.parametrize("layers", ["top:1", "readout,top:1", "all", 0])
def test_adapters_inside_the_model_keep_small_steps(layers: object) -> None:
    config = of(adapter__layers=layers)
    assert (config.adapter.layers, config.steps, config.batch) == (str(layers), 2, 32)
    assert "adapter.layers" not in automatic_values(config.flat())


def test_a_basis_is_for_adapters_inside_the_model(tmp_path: Path) -> None:
    config = of(adapter__basis=str(tmp_path / "basis"))
    assert (config.adapter.layers, config.steps, config.batch) == ("top:1", 2, 32)


def test_emulated_devices_are_timed_with_adapters_inside_the_model() -> None:
    fleet = {"fleet.devices": '[{"device": "laptop", "share": 1}]'}
    config = RunConfig.of(fleet, "test")
    assert (config.adapter.layers, config.steps, config.batch) == ("top:1", 2, 32)
    assert RunConfig.of(config.flat(), "test") == config
    both = RunConfig.of(fleet | {"adapter.layers": "readout"}, "test")
    assert (both.adapter.layers, both.steps) == ("readout", 16)


@pytest.mark.parametrize(
    ("task", "queries"), [("sst2", 16), ("cb", 32), ("trec", 64), ("record", 16), ("none.toml", 16)]
)
def test_the_directions_of_a_readout_follow_from_the_labels(task: str, queries: int) -> None:
    given = {"task": task, "data__path": "data", "model__path": "model"}
    assert of(**given, adapter__layers="readout").queries == queries
    assert of(**given, adapter__layers="top:1").queries == 16


def test_what_is_set_is_kept() -> None:
    config = of(adapter__layers="readout", steps=3, queries=7, batch=5)
    assert (config.steps, config.queries, config.batch) == (3, 7, 5)
    assert set(automatic_values(config.flat())) == {"adapter.layers"}


def test_a_choice_is_made_once() -> None:
    for config in (RunConfig(), of(adapter__layers="top:2"), of(steps=7)):
        assert RunConfig.of(config.flat(), "test") == config
    given = RunConfig(adapter=AdapterSettings(layers="all", rank=3))
    assert (given.adapter.layers, given.adapter.rank, given.steps) == ("all", 3, 2)


def test_open_and_explicit_settings_are_the_same_run() -> None:
    explicit = of(adapter__layers="readout", steps=16, queries=16, batch=10_000)
    assert explicit.identity() == RunConfig().identity()


def test_tune_trains_adapters_inside_the_model() -> None:
    assert TuneSettings().adapter.layers == "top:1"
    assert TuneSettings.of({"adapter.layers": "all"}, "test").adapter.layers == "all"
