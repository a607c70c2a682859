"""Readouts in `samara tune`, exact gradients, and the start file for a federation."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tuning import Settings, setup_of, small, stopping_after, tuned, tuning_of

from samara.client.forward.readout import RepresentationScorer
from samara.client.tuning.baselines.first_order import FirstOrder
from samara.client.tuning.run import tune
from samara.client.tuning.trajectory import read_trajectory
from samara.client.tuning.tuning_setup import EvaluationResult, TuningSetup
from samara.client.tuning.zeroth_order import TRAJECTORY_FILE
from samara.shared.errors import ConfigError
from samara.shared.protocol.start import START_FILE


@pytest.fixture
def settings(model_folder: Callable[[str], Path], data_file: Path, tmp_path: Path) -> Settings:
    return small(model_folder("causal"), data_file, tmp_path / "run")


@pytest.mark.parametrize(
    "layers", ["readout", pytest.param("readout,top:2", marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "prge", "differences": "forward", "learning_rate": "auto"},
        {"optimizer": "prge", "gradients": "exact"},
        {"optimizer": "mezo-adam"},
        {"optimizer": "fo-adam"},
    ],
    ids=str,
)
def test_an_interrupted_readout_goes_on_to_the_same_result(
    changes: Settings, layers: str, settings: Settings, tmp_path: Path
) -> None:
    changes = {"space": "lora-fa", "adapter.layers": layers, "steps": 6, **changes}
    whole = tuned(tuning_of(settings, out=str(tmp_path / "whole"), **changes))
    assert whole["curve"][0]["loss"] == whole["zero_shot"]["validation"]["loss"]
    assert len({point["loss"] for point in whole["curve"]}) == 4
    config = tuning_of(settings, **changes)
    with pytest.raises(KeyboardInterrupt):
        tune(config, stopping_after(3))
    assert tuned(config) == whole
    start = (tmp_path / "whole" / START_FILE).read_bytes()
    assert (Path(config.out) / START_FILE).read_bytes() == start


def test_a_readout_runs_the_model_once_per_example(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = list[int]()
    plain = RepresentationScorer.scores

    def scores(scorer: RepresentationScorer, *arguments: Any) -> torch.Tensor:
        result = plain(scorer, *arguments)
        passed.append(result.shape[1])
        return result

    monkeypatch.setattr(RepresentationScorer, "scores", scores)
    config = tuning_of(settings, adapter__layers="readout", adapter__damping="none", steps=5)
    result = tuned(config)
    assert sum(passed) == sum(result["examples"].values()) == 48
    assert result["config"]["batch"] == 4
    assert setup_of(settings | {"batch": 0}, adapter__layers="readout").settings.batch == 10_000
    assert setup_of(settings | {"batch": 0}).settings.batch == 16


def test_exact_gradients_are_the_limit_of_differences(settings: Settings, tmp_path: Path) -> None:
    def gradients(name: str, **changes: Any) -> Any:
        folder = tmp_path / name
        tune(tuning_of(settings, out=str(folder), steps=1, queries=8, **changes))
        return read_trajectory(folder / TRAJECTORY_FILE).steps[0].gradients

    for layers in ("readout", "top:2"):
        limit = gradients(f"exact {layers}", adapter__layers=layers, gradients="exact")
        differences = gradients(f"central {layers}", adapter__layers=layers, epsilon=1e-2)
        assert np.corrcoef(limit, differences)[0, 1] > 0.99
        np.testing.assert_allclose(limit, differences, atol=0.05 * np.abs(limit).max())


def test_exact_gradients_need_the_cross_entropy_and_all_blocks(settings: Settings) -> None:
    with pytest.raises(
        ConfigError, match="gradients: exact gradients exist only for the cross-entropy"
    ):
        setup_of(settings, gradients="exact", objective="metric")
    with pytest.raises(ConfigError, match="needs all blocks at once"):
        tuning_of(settings, gradients="exact", model__stream="disk")
    with pytest.raises(
        ConfigError, match="gradients: mezo has a separate batch for every direction"
    ):
        tuning_of(settings, gradients="exact", optimizer="mezo")
    assert "gradients" not in tuning_of(settings).identity()
    assert tuning_of(settings, gradients="exact").identity()["gradients"] == "exact"


def test_the_start_is_the_state_with_the_lowest_loss(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    losses = {0: 0.7, 2: 0.5, 4: 0.6}
    metrics = {0: 0.9, 2: 0.5, 4: 0.8}
    kept = list[int]()

    def evaluate(method: FirstOrder, split: Any) -> EvaluationResult:
        return EvaluationResult(12, losses[method.steps], metrics[method.steps])

    plain = FirstOrder.make_start

    def make_start(method: FirstOrder) -> Any:
        kept.append(method.steps)
        return plain(method)

    def evaluate_base(setup: TuningSetup, split: Any) -> EvaluationResult:
        return EvaluationResult(12, losses[0], metrics[0])

    monkeypatch.setattr(TuningSetup, "evaluate_base", evaluate_base)
    monkeypatch.setattr(FirstOrder, "evaluate", evaluate)
    monkeypatch.setattr(FirstOrder, "make_start", make_start)
    config = tuning_of(settings, optimizer="fo-adam")
    result = tuned(config)
    assert (result["best_step"], result["start_step"], kept) == (0, 2, [0, 2])
    losses |= {2: 0.8, 4: 0.7}
    with caplog.at_level(logging.WARNING):
        again = tuned(tuning_of(settings, optimizer="fo-adam", out=config.out + "-again"))
    assert again["start_step"] == 0
    assert "is the base model: no later state has a lower validation loss" in caplog.text
