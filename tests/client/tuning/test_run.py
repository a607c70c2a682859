"""Every method on tiny models: its results, its continuation after a stop, and its refusals."""

import logging
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from tuning import Settings, lasting, setup_of, small, stopping_after, tuned, tuning_of

from samara.client.forward.body import PerturbedBody
from samara.client.forward.resident import ResidentForward
from samara.client.spaces.low_rank import LoRAFASpace
from samara.client.tuning import run as runs
from samara.client.tuning.baselines.first_order import BEST_FILE, CHECKPOINT_FILE, FirstOrder
from samara.client.tuning.methods import BY_PEFT, SPACES
from samara.client.tuning.run import METRICS_FILE, read_result, tune
from samara.client.tuning.trajectory import read_trajectory
from samara.client.tuning.tuning_setup import EvaluationResult, draw_examples
from samara.client.tuning.zeroth_order import TRAJECTORY_FILE
from samara.shared.errors import (
    ConfigError,
    DataError,
    ModelError,
    SamaraError,
    TaskError,
    TrainingError,
)
from samara.shared.protocol.directions import directions
from samara.shared.protocol.replay_numba import NumbaBackend
from samara.shared.protocol.step_size import StepSize
from samara.shared.tasks.catalog import load_task

ModelFolder = Callable[[str], Path]
BY_PEFT_TRAINED = [("mezo", "vera"), ("fo-adam", "vera")]
"""Cases of PEFT's spaces that are tested here; the tests of exports have the other cases."""
TRAINED = [
    (method, space)
    for method, spaces in SPACES.items()
    for space in spaces
    if space not in BY_PEFT or (method, space) in BY_PEFT_TRAINED
]


@pytest.fixture
def settings(model_folder: ModelFolder, data_file: Path, tmp_path: Path) -> Settings:
    return small(model_folder("causal"), data_file, tmp_path / "run")


@pytest.mark.parametrize(("method", "space"), TRAINED)
def test_a_method_trains_validates_and_tests(method: str, space: str, settings: Settings) -> None:
    config = tuning_of(settings, optimizer=method, space=space, learning_rate=1e-3)
    folder = tune(config)
    result = read_result(folder)
    assert (result["config"]["method"], result["config"]["space"]) == (method, space)
    assert result["examples"] == {"train": 24, "validation": 12, "test": 12}
    curve = result["curve"]
    assert [point["step"] for point in curve] == [0, 2, 4]
    assert len({point["loss"] for point in curve}) == 3
    assert all(np.isfinite(point["loss"]) and 0 <= point["accuracy"] <= 1 for point in curve)
    (best,) = (point for point in curve if point["step"] == result["best_step"])
    assert all(point["accuracy"] <= best["accuracy"] for point in curve)
    assert result["validation"] == {key: best[key] for key in best if key != "step"}
    assert result["test"]["examples"] == 12
    assert {"seconds", "peak_memory_bytes", "versions", "digest", "model_id"} <= set(result)
    if space != "prefix":
        assert curve[0]["loss"] == result["zero_shot"]["validation"]["loss"]
    before = (folder / "result.json").stat().st_mtime_ns
    assert tune(config) == folder
    assert (folder / "result.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("family", ["masked", "encoder"])
@pytest.mark.parametrize(
    ("method", "space"), [("prge", "lora-fa"), ("mezo", "full"), ("fo-adam", "full")]
)
def test_other_families_train_too(
    method: str, space: str, family: str, settings: Settings, model_folder: ModelFolder
) -> None:
    changes = {"model__path": str(model_folder(family)), "learning_rate": 1e-3}
    result = tuned(tuning_of(settings, optimizer=method, space=space, **changes))
    assert len({point["loss"] for point in result["curve"]}) == 3


@pytest.mark.parametrize("space", ["lora-fa", "full"])
def test_first_order_learns(space: str, settings: Settings) -> None:
    result = tuned(
        tuning_of(
            settings,
            optimizer="fo-adam",
            space=space,
            steps=30,
            validate_every=15,
            learning_rate=0.01,
        )
    )
    losses = [point["loss"] for point in result["curve"]]
    assert losses[-1] < losses[0]
    assert result["best_step"] > 0
    assert result["validation"]["accuracy"] > result["zero_shot"]["validation"]["accuracy"]


def test_a_projected_gradient_is_the_true_gradient_along_its_direction(settings: Settings) -> None:
    setup = setup_of(settings, optimizer="fo-adam")
    method = FirstOrder(setup, Path(settings["out"]), bytes(32))
    (center,) = method._trained.values()
    train, batch = setup.splits["train"], setup.batch(0)
    method._backward(method._batch_loss(batch, len(batch)))
    other = setup_of(settings)
    space = LoRAFASpace(other.base, other.settings.adapter, 2, NumbaBackend(1))
    seeds = np.arange(3, dtype=np.uint64)
    z = directions(seeds, space.size, "gaussian").astype(np.float32) / 2048
    assert center.grad is not None
    expected = z @ center.grad.numpy()
    body = PerturbedBody(other.base, space.adapter.first_block)
    forward = ResidentForward(space.adapter, other.scorer, body)
    prompts = [train.prompts[i] for i in batch]
    found = space.evaluate(
        lambda perturbations: forward.scores(perturbations, prompts), seeds, 1e-3
    )
    plus, minus = np.split(other.objective(found, train.labels[batch]), 2)
    np.testing.assert_allclose((plus - minus) / 2e-3, expected, rtol=0.01, atol=5e-3)


@pytest.mark.parametrize(
    ("method", "space"),
    [
        ("prge", "lora-fa"),
        ("prge", "lora"),
        ("prge", "prefix"),
        ("prge", "vera"),
        ("mezo-adam", "prefix"),
        ("mezo-momentum", "full"),
        ("fo-adam", "lora-fa"),
        ("fo-adam", "full"),
        ("lora", "lora"),
        ("zero-offload", "full"),
    ],
)
def test_an_interrupted_run_goes_on_to_the_same_result(
    method: str, space: str, settings: Settings, tmp_path: Path
) -> None:
    """The run is stopped once between two validations, and once at a validation."""
    changes = {"optimizer": method, "space": space, "steps": 6, "learning_rate_schedule": "linear"}
    whole = tuned(tuning_of(settings, out=str(tmp_path / "whole"), **changes))
    for stop in (3, 4):
        config = tuning_of(settings, out=str(tmp_path / f"stopped-{stop}"), **changes)
        with pytest.raises(KeyboardInterrupt):
            tune(config, stopping_after(stop))
        assert not (Path(config.out) / "result.json").exists()
        assert tuned(config) == whole


@pytest.mark.parametrize(
    ("method", "space"), [("prge", "lora-fa"), ("mezo", "prefix"), ("mezo-momentum", "full")]
)
def test_a_learning_rate_that_is_found_is_found_again(
    method: str, space: str, settings: Settings, tmp_path: Path
) -> None:
    changes = {"optimizer": method, "space": space, "learning_rate": "auto"}
    changes |= {"steps": 12, "queries": 4, "validate_every": 6}
    whole = tuned(tuning_of(settings, out=str(tmp_path / "whole"), **changes))
    steps = read_trajectory(tmp_path / "whole" / TRAJECTORY_FILE).steps
    rates = [step.learning_rate for step in steps]
    assert rates[:2] == [0] * 2
    assert min(rates[2:]) > 0
    config = tuning_of(settings, **changes)
    with pytest.raises(KeyboardInterrupt):
        tune(config, stopping_after(10))
    assert tuned(config) == whole


def test_forward_differences_go_on_to_the_same_result(settings: Settings, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"learning_rate": "auto", "differences": "forward"}
    changes |= {"steps": 12, "queries": 8, "validate_every": 6}
    whole = tuned(tuning_of(settings, out=str(tmp_path / "whole"), **changes))
    assert (
        tuned(
            tuning_of(settings, out=str(tmp_path / "two"), **changes | {"differences": "central"})
        )
        != whole
    )
    config = tuning_of(settings, **changes)
    with pytest.raises(KeyboardInterrupt):
        tune(config, stopping_after(10))
    assert tuned(config) == whole


def test_a_loss_that_rises_returns_and_the_run_goes_on_the_same(
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The fourth step returns to the start. A run killed after this step gives the same result."""
    monkeypatch.setattr(StepSize, "_has_risen", lambda self, average, latest: self.done == 3)
    whole = tuned(tuning_of(settings, steps=6, out=str(tmp_path / "whole")))
    assert "the loss rose" in caplog.text
    trajectory = read_trajectory(tmp_path / "whole" / TRAJECTORY_FILE)
    assert trajectory.records[3] == 0
    assert trajectory.steps == (trajectory.records[4], trajectory.records[5])
    config = tuning_of(settings, steps=6)
    with pytest.raises(KeyboardInterrupt):
        tune(config, stopping_after(5))
    assert tuned(config) == whole


@pytest.mark.parametrize("missing", ["validation", "test"])
def test_a_run_that_died_while_it_evaluated_goes_on(
    missing: str, settings: Settings, tmp_path: Path
) -> None:
    for method in ("mezo", "fo-adam"):
        config = tuning_of(settings, optimizer=method, out=str(tmp_path / method))
        whole = tuned(config)
        metrics = tmp_path / method / METRICS_FILE
        lines = metrics.read_bytes().splitlines(keepends=True)
        kept = lines[: -2 if missing == "validation" else -1]
        metrics.write_bytes(b"".join(kept) + b'{"half')
        (tmp_path / method / "result.json").unlink()
        if method == "fo-adam" and whole["best_step"] == 4:
            (tmp_path / method / BEST_FILE).unlink()
        assert tuned(config) == whole


@pytest.mark.parametrize(
    ("method", "space"),
    [("prge", "lora-fa"), ("mezo", "prefix"), ("mezo-adam", "full"), ("fo-adam", "full")],
)
def test_the_best_state_is_what_it_was(
    method: str,
    space: str,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runs, "_best_step", lambda curve: min(2, max(curve)))
    found = [
        tuned(
            tuning_of(
                settings, optimizer=method, space=space, steps=steps, out=str(tmp_path / f"{steps}")
            )
        )
        for steps in (4, 2)
    ]
    assert [len(result["curve"]) for result in found] == [3, 2]
    for key in ("best_step", "digest", "test", "validation"):
        assert found[0][key] == found[1][key]


def test_the_best_is_the_first_of_the_best_by_metric_then_loss() -> None:
    figures = {0: (0.5, 1.0), 2: (0.75, 2.0), 4: (0.75, 1.5), 6: (0.75, 1.5), 8: (0.5, 0.1)}
    curve = {step: EvaluationResult(4, loss, metric) for step, (metric, loss) in figures.items()}
    assert runs._best_step(curve) == 4


@pytest.mark.parametrize(
    ("changes", "family", "error", "message"),
    [
        ({"optimizer": "icl"}, "masked", ModelError, "in-context learning needs a causal LM"),
        ({"optimizer": "mezo", "space": "prefix"}, "encoder", ModelError, "a prefix needs a langu"),
        ({"objective": "likelihood", "data__path": "/no"}, "causal", DataError, "/no"),
        ({"task": "no-such"}, "causal", TaskError, "neither a shipped task"),
    ],
)
def test_what_a_model_cannot_do_is_refused(
    changes: Settings,
    family: str,
    error: type[SamaraError],
    message: str,
    settings: Settings,
    model_folder: ModelFolder,
) -> None:
    with pytest.raises(error, match=message):
        tune(tuning_of(settings, model__path=str(model_folder(family)), **changes))


def test_a_folder_of_another_run_is_refused(settings: Settings) -> None:
    tune(tuning_of(settings))
    with pytest.raises(
        ConfigError, match=r"another run is in this folder: steps \(4 in the file, 6 here"
    ):
        tune(tuning_of(settings, steps=6))


def test_two_processes_cannot_run_in_one_folder(settings: Settings) -> None:
    folder = Path(settings["out"])
    folder.mkdir()
    with (
        FileLock(folder / "lock"),
        pytest.raises(ConfigError, match="another process is executing this run"),
    ):
        tune(tuning_of(settings))


def test_damaged_files_are_named(settings: Settings, tmp_path: Path) -> None:
    for method, file in (("fo-adam", CHECKPOINT_FILE), ("mezo", TRAJECTORY_FILE)):
        config = tuning_of(settings, optimizer=method, out=str(tmp_path / method))
        with pytest.raises(KeyboardInterrupt):
            tune(config, stopping_after(3))
        damaged = tmp_path / method / file
        damaged.write_bytes(b"\x07" * 100)
        with pytest.raises(SamaraError, match=f"{file}: .*begin"):
            tune(config)


def test_a_loss_that_is_not_finite_stops_first_order(settings: Settings) -> None:
    with pytest.raises(TrainingError, match=r"the loss of step \d+ is not finite; lower"):
        tune(tuning_of(settings, optimizer="fo-adam", space="full", learning_rate=1e30))


def test_the_draw_and_the_steps_follow_the_seed(settings: Settings, tmp_path: Path) -> None:
    found = [
        tuned(tuning_of(settings, seed=seed, out=str(tmp_path / name)))
        for name, seed in (("first", 1), ("second", 1), ("third", 2))
    ]
    assert found[0] == found[1]
    assert found[0]["data"] != found[2]["data"]
    assert found[0]["digest"] != found[2]["digest"]


def test_a_run_draws_as_many_of_each_label(settings: Settings) -> None:
    changes = {key: value for key, value in settings.items() if not key.startswith("data.")}
    data = {"data.path": settings["data.path"], "data.test": 12, "data.per-label": 3}
    config = tuning_of(changes | data, optimizer="zero-shot")
    found = tuned(config)
    assert found["validation"]["examples"] == 6
    assert found["test"]["examples"] == 12
    with pytest.raises(TaskError, match="is a choice, whose rows have no common labels"):
        draw_examples(config, load_task("copa"))


def test_generated_messages_are_as_many_as_a_run_draws_by_default() -> None:
    config = tuning_of({})
    drawn = Counter(example.split for example in draw_examples(config, load_task(config.task)))
    assert drawn == {"train": 1000, "validation": 500, "test": 1000}


def test_without_tensorboard_it_says_so_and_runs(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with caplog.at_level(logging.INFO, logger="samara.tune"):
        folder = tune(tuning_of(settings))
    assert "pip install 'samara-fl[tensorboard]'" in caplog.text
    assert lasting(folder)["curve"]


def test_curves_go_to_tensorboard(settings: Settings) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra samara-fl[tensorboard]")
    folder = tune(tuning_of(settings))
    assert list((folder / "tensorboard").glob("events.out.tfevents.*"))
