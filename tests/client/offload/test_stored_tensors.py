"""A checkpoint's moments and projectors are read back unchanged, or are refused by name."""

import pytest
import torch
from torch import Tensor, nn

from samara.client.offload.layer_update import ImmediateSchedule, LayerUpdate, SubspaceSettings
from samara.client.offload.offloaded_adam import OffloadedAdam
from samara.client.tuning.baselines.resident_optimizer import ResidentOptimizer

SUBSPACE = SubspaceSettings(size=4, nonzeros=2, threshold=0.3, gamma=0.0, most_steps=0, seed=1)


def offloaded() -> OffloadedAdam:
    weight = nn.Parameter(torch.ones(6, 5))
    layer = LayerUpdate.in_subspace("w", weight, SUBSPACE)
    optimizer = OffloadedAdam([layer], ImmediateSchedule(), SUBSPACE)
    optimizer.begin_pass(0.1)
    weight.square().sum().backward()
    return optimizer


@pytest.fixture
def stored() -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in offloaded().tensors().items()}


def test_what_is_stored_is_read_back(stored: dict[str, Tensor]) -> None:
    optimizer = offloaded()
    optimizer.restore(stored, steps=1)
    found = optimizer.tensors()
    assert found.keys() == stored.keys()
    assert all(torch.equal(found[name], stored[name]) for name in stored)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("exp_avg.w", None, "lacks the tensor exp_avg.w"),
        ("exp_avg_sq.w", torch.zeros(6, 5), r"exp_avg_sq.w is torch.float32 \(6, 5\), not"),
        ("exp_avg.w", torch.zeros(4, 4, dtype=torch.float64), "exp_avg.w is torch.float64"),
        ("draws.w", torch.zeros(2, dtype=torch.int64), "draws.w is"),
        ("left.values.w", None, "lacks the tensor left.values.w"),
        ("right.positions.w", torch.full((5, 2), -1, dtype=torch.int32), "from 0 to 3"),
        ("left.positions.w", torch.full((6, 2), 4, dtype=torch.int32), "from 0 to 3"),
    ],
)
def test_what_does_not_fit_is_refused(
    name: str, tensor: Tensor | None, message: str, stored: dict[str, Tensor]
) -> None:
    del stored[name]
    if tensor is not None:
        stored[name] = tensor
    with pytest.raises(ValueError, match=message):
        offloaded().restore(stored, steps=1)


def test_moments_beside_the_weights_are_checked_too() -> None:
    trained = {"w": nn.Parameter(torch.ones(3))}
    stored = {"exp_avg.w": torch.zeros(3), "exp_avg_sq.w": torch.zeros(4)}
    with pytest.raises(ValueError, match=r"exp_avg_sq\.w is"):
        ResidentOptimizer(trained, 0.1).restore(stored, steps=1)
