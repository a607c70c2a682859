"""Forward-mode derivatives of every space: the limit of ε → 0, in the same model."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rigs import BUILD, LABELS, SEEDS, Rig
from torch import Tensor
from tuning import small, tuned, tuning_of

from samara.client.estimators.prge import LossRequest
from samara.client.spaces.scaling import Scaling
from samara.client.tuning.training_loss import summed_loss
from samara.shared.model.perturbations import PerturbedAdapters

ModelFolder = Callable[[str], Path]


def loss_of(rig: Rig) -> Callable[[PerturbedAdapters], Tensor]:
    """The mean cross-entropy of all prompts."""

    def loss(adapters: PerturbedAdapters) -> Tensor:
        scores = rig.forward.score_pass(adapters, rig.prompts)[0]
        return summed_loss(scores, LABELS, "cross-entropy") / len(LABELS)

    return loss


def differences(rig: Rig, epsilon: float) -> NDArray[np.float64]:
    batch = np.arange(len(LABELS))
    plus, minus = np.split(rig.losses_of(LossRequest(SEEDS, epsilon, batch)), 2)
    return (plus - minus) / (2 * epsilon)


@pytest.mark.parametrize("kind", BUILD)
def test_forward_mode_is_the_limit_of_central_differences(
    kind: str, model_folder: ModelFolder
) -> None:
    """Richardson's extrapolation of central differences at ε and 2·ε to zero."""
    rig = Rig(model_folder("causal"), kind)
    rig.wander()
    theta = rig.theta()
    found = [rig.space.derivative(loss_of(rig), int(seed)) for seed in SEEDS]
    np.testing.assert_array_equal(rig.theta(), theta)
    losses = rig.losses_of(LossRequest(SEEDS[:0], 0.0, np.arange(len(LABELS))))
    assert [loss for loss, _ in found] == pytest.approx([losses[0]] * 2, rel=1e-5)
    once, twice = differences(rig, 2e-3), differences(rig, 4e-3)
    limit = once - (twice - once) / 3
    assert [value for _, value in found] == pytest.approx(limit, rel=5e-3, abs=5e-4)
    assert np.abs(limit).min() > 5e-3


@pytest.mark.parametrize("kind", ["full", "prefix"])
def test_a_scaled_direction_is_differentiated_along_as_it_is_scaled(
    kind: str, model_folder: ModelFolder
) -> None:
    """Derivatives are linear in the direction: derivatives along groups add up to the whole one."""
    rig = Rig(model_folder("causal"), kind)
    rig.wander()
    groups = len(rig.space.groups.names)
    factors = np.linspace(0.5, 2, groups).astype(np.float32)
    parts = []
    for group in range(groups):
        rig.space.scaling = Scaling.of_one(group, groups)
        parts.append(rig.space.derivative(loss_of(rig), 3)[1])
    rig.space.scaling = Scaling(factors)
    whole = rig.space.derivative(loss_of(rig), 3)[1]
    assert whole == pytest.approx(float(factors @ parts), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("space", ["lora-fa", "lora", "vera", "prefix"])
def test_with_a_shared_batch_they_are_those_of_a_backward_pass(
    space: str, model_folder: ModelFolder, data_file: Path, tmp_path: Path
) -> None:
    settings = small(model_folder("causal"), data_file, tmp_path / "run")
    changes = {
        "optimizer": "prge",
        "space": space,
        "queries": 3,
        "steps": 2,
        "micro_batch": 3,
        "learning_rate": 0.01,
    }
    losses = {}
    for gradients in ("exact", "forward-mode", "differences"):
        out = str(tmp_path / gradients)
        result = tuned(tuning_of(settings, out=out, gradients=gradients, **changes))
        losses[gradients] = result["curve"][-1]["loss"]
    assert losses["forward-mode"] == pytest.approx(losses["exact"], abs=1e-6)
    assert losses["differences"] == pytest.approx(losses["exact"], abs=1e-3)
