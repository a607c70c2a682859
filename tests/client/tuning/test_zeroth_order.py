"""Variants of MeZO in `samara tune`: the effect of each on the same run, and its continuation."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tuning import Settings, small, tuned, tuning_of

from samara.client.tuning import zeroth_order
from samara.client.tuning.group_norms import d_of
from samara.client.tuning.model_setup import ModelSetup
from samara.client.tuning.run import tune
from samara.client.tuning.run_space import make_space
from samara.client.tuning.trajectory import read_trajectory
from samara.client.tuning.tuning_setup import TuningSetup
from samara.client.tuning.zeroth_order import TRAJECTORY_FILE, update_rule

ModelFolder = Callable[[str], Path]
VARIANTS: dict[str, dict[str, Any]] = {
    "with a copy": {"space": "full", "in_place": False},
    "in place, bfloat16": {"space": "full", "in_place": True, "model__dtype": "bfloat16"},
    "one-point": {"space": "full", "differences": "one-point", "queries": 2},
    "one-point of a prefix": {"space": "prefix", "differences": "one-point"},
    "one-point with a copy": {"space": "full", "differences": "one-point", "in_place": False},
    "weight decay": {"space": "lora", "weight_decay": 0.1},
    "variance": {"space": "full", "scaling__modify": "variance"},
    "variance of a prefix, every epoch": {
        "space": "prefix",
        "scaling__modify": "variance",
        "scaling__every_epoch": True,
        "batch": 12,
    },
    "expectation by parameters": {
        "space": "full",
        "scaling__modify": "expectation",
        "scaling__norms": "parameters",
    },
    "variance by a backward pass": {
        "space": "full",
        "scaling__modify": "variance",
        "scaling__norms": "backward",
    },
    "forward-mode": {"space": "lora", "gradients": "forward-mode", "queries": 2},
    "forward-mode in place": {"space": "full", "gradients": "forward-mode"},
    "profiled": {"space": "full", "objective": "profiled-cross-entropy"},
    "profiled, of every direction's batch": {
        "space": "lora",
        "gradients": "forward-mode",
        "objective": "profiled-cross-entropy",
        "queries": 2,
    },
    "random prefix": {"space": "prefix", "prefix_start": "random"},
    "prefix of a network": {"space": "prefix", "prefix_start": "random", "prefix_width": 8},
    "mixed precision": {"space": "full", "autocast": "bfloat16"},
    "mixed precision, float16": {"space": "full", "autocast": "float16"},
    "mixed precision of a prefix": {"space": "prefix", "autocast": "bfloat16"},
    "mixed precision of adapters": {"space": "lora-fa", "autocast": "bfloat16"},
    "cosine": {"space": "lora-fa", "learning_rate_schedule": "cosine", "warm_up": 2},
}


OWN = {"optimizer": "mezo", "learning-rate": 1e-3}


@pytest.fixture
def settings(model_folder: ModelFolder, data_file: Path, tmp_path: Path) -> Settings:
    return small(model_folder("causal"), data_file, tmp_path / "run") | OWN


@pytest.fixture(scope="module")
def plain_curve(
    model_folder: ModelFolder, data_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., list[Any]]:
    """The validations of a run without a variant; each run is executed once."""

    @cache
    def curve_of(**changes: Any) -> list[Any]:
        settings = small(
            model_folder("causal"), data_file, tmp_path_factory.mktemp("plain") / "run"
        )
        curve: list[Any] = tuned(tuning_of(settings | OWN, **changes))["curve"]
        return curve

    return curve_of


def stop_after(steps: int) -> Callable[[int, int], None]:
    def on_step(done: int, whole: int) -> None:
        if done == steps:
            raise KeyboardInterrupt

    return on_step


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_goes_on_to_the_same_result(
    variant: str, settings: Settings, plain_curve: Callable[..., list[Any]], tmp_path: Path
) -> None:
    changes = VARIANTS[variant]
    whole = tuned(tuning_of(settings, out=str(tmp_path / "whole"), **changes))
    kept = ("space", "model__dtype", "batch")
    plain = {k: v for k, v in changes.items() if k in kept}
    assert plain_curve(**plain) != whole["curve"]
    config = tuning_of(settings, **changes)
    with pytest.raises(KeyboardInterrupt):
        tune(config, stop_after(3))
    assert tuned(config) == whole


@pytest.mark.parametrize("method", ["mezo-momentum", "mezo-adam"])
def test_recomputed_moments_are_the_held_ones(
    method: str, settings: Settings, tmp_path: Path
) -> None:
    changes = {"optimizer": method, "space": "lora"}
    held = tuned(tuning_of(settings, out=str(tmp_path / "held"), moments="held", **changes))
    config = tuning_of(settings, moments="recomputed", **changes)
    assert tuned(config)["digest"] == held["digest"]


def test_in_place_is_the_copy_but_for_the_rounding_of_restoring(
    settings: Settings, tmp_path: Path
) -> None:
    """Each of the three moves in a step may round once; steps on a copy restore θ exactly."""
    thetas = []
    for in_place in (False, True):
        out = tmp_path / str(in_place)
        config = tuning_of(settings, space="full", in_place=in_place, out=str(out)).complete(1)
        tune(config)
        setup = TuningSetup(config)
        space = make_space(setup)
        trajectory = read_trajectory(out / TRAJECTORY_FILE)
        trajectory.rebuild(space, update_rule(config), setup.base.model_id)
        thetas.append(space.values(0, space.size).numpy().copy())
    difference = np.abs(thetas[0] - thetas[1])
    assert 0 < difference.max() < 1e-4
    moved = np.abs(thetas[0]).max()
    assert np.sqrt(np.mean(difference**2)) < 6 * 3 * 2.0**-23 * moved


def test_a_run_that_was_begun_with_a_copy_goes_on_with_it(
    settings: Settings, tmp_path: Path
) -> None:
    copied = tuning_of(settings, space="full", in_place=False)
    whole = tuned(copied.model_copy(update={"out": str(tmp_path / "whole")}))
    with pytest.raises(KeyboardInterrupt):
        tune(copied, stop_after(3))
    assert tuned(tuning_of(settings, space="full")) == whole


def test_the_rate_is_that_of_a_direction_times_their_number(
    settings: Settings, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"space": "lora-fa", "queries": 3, "query_schedule": "linear"}
    config = tuning_of(settings, steps=6, rate_per_query=True, tested_state="last", **changes)
    result = tuned(config)
    steps = read_trajectory(Path(config.out) / TRAJECTORY_FILE).steps
    rates = [float(np.float32(1e-3 * len(step.gradients))) for step in steps]
    assert [step.learning_rate for step in steps] == rates
    assert len(set(rates)) == 3
    assert result["best_step"] == len(steps) == 6


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_in_place_streamed_is_in_place(dtype: str, settings: Settings, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"space": "full", "in_place": True, "model__dtype": dtype}
    resident = tuned(tuning_of(settings, out=str(tmp_path / "resident"), **changes))
    streamed = tuned(tuning_of(settings, model__stream="host", **changes))
    assert streamed["digest"] == resident["digest"]


@pytest.mark.parametrize(
    ("space", "modify"), [("full", "variance"), ("lora", "expectation"), ("prefix", "variance")]
)
def test_scaling_by_ones_is_plain(
    space: str, modify: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {"space": space, "optimizer": "mezo-momentum", "in_place": False}
    plain = tuned(tuning_of(settings, out=str(tmp_path / "plain"), **changes))
    monkeypatch.setattr(zeroth_order, "d_of", np.ones_like)
    scaled = tuned(tuning_of(settings, scaling__modify=modify, **changes))
    assert scaled["digest"] == plain["digest"]


def test_norms_by_a_backward_pass_are_near_those_from_losses(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On the same batch, estimates from 40 directions of each group are √(2/π) times the norms."""
    found: list[NDArray[np.float32]] = []

    def noted(norms: NDArray[np.float32]) -> NDArray[np.float32]:
        found.append(norms)
        return d_of(norms)

    monkeypatch.setattr(zeroth_order, "d_of", noted)
    changes: dict[str, Any] = {"space": "full", "scaling__modify": "variance", "steps": 1}
    for name, more in {"backward": {}, "gradients": {"scaling__directions": 40}}.items():
        out = str(tmp_path / name)
        tune(tuning_of(settings, out=out, scaling__norms=name, **changes, **more))
    exact, estimated = found
    np.testing.assert_allclose(estimated, exact * np.sqrt(2 / np.pi), rtol=0.5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mixed_precision_of_a_streamed_model_is_that_of_a_resident_one(
    dtype: str, settings: Settings, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"space": "full", "autocast": dtype}
    resident = tuned(tuning_of(settings, out=str(tmp_path / "resident"), **changes))
    streamed = tuned(tuning_of(settings, model__stream="host", **changes))
    assert streamed["digest"] == resident["digest"]


def test_products_are_rounded_to_tf32_where_that_is_wanted(settings: Settings) -> None:
    wanted = tuning_of(settings, tf32=True, model__torch_device="cuda").complete(1)
    try:
        ModelSetup(wanted)
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        ModelSetup(tuning_of(settings).complete(1))
    assert not torch.backends.cuda.matmul.allow_tf32


def test_scaled_and_streamed_is_scaled(settings: Settings, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"space": "full", "scaling__modify": "variance"}
    resident = tuned(tuning_of(settings, out=str(tmp_path / "resident"), **changes))
    streamed = tuned(tuning_of(settings, model__stream="host", **changes))
    assert streamed["digest"] == resident["digest"]
