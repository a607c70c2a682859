"""Optimizers on the host beside pretended GPUs: the weights of plain Adam, and planted mistakes."""

from contextlib import closing

import pytest
import torch
from accelerator import MissingWaitError, pretended_gpus
from torch import Tensor, nn

from samara.client.offload.accelerator import accelerator_for
from samara.client.offload.layer_update import GradientHooks, LayerUpdate
from samara.client.offload.overlapped_schedule import OverlappedSchedule, ScheduledLayer
from samara.client.offload.projectors import ProjectorPair
from samara.client.offload.service_order import Order
from samara.client.streaming.block_transfer import CudaTransfer

FEATURES, STEPS, RATE = 12, 3, 0.05
WHOLE = FEATURES


def new_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(FEATURES, FEATURES) for _ in range(3)))


def batch(step: int) -> Tensor:
    return torch.randn(5, FEATURES, generator=torch.Generator().manual_seed(step))


def by_torch() -> list[Tensor]:
    """The weights after steps of torch's own Adam."""
    network = new_network()
    adam = torch.optim.Adam(network.parameters(), RATE, fused=True)
    for step in range(STEPS):
        adam.zero_grad()
        network(batch(step)).square().sum().backward()
        adam.step()
    return [weight.detach() for weight in network.parameters()]


def offloaded(device: str, order: Order, subspace: int = WHOLE) -> list[Tensor]:
    """The weights after steps whose optimizer is on the host."""
    network, place = new_network().to(device), torch.device(device)
    layers = []
    for index, block in enumerate(network):
        projectors = ProjectorPair.random((FEATURES, FEATURES), subspace, 3, (index,), place)
        updates = [
            LayerUpdate(name, weight, projectors if weight.dim() == 2 else ProjectorPair())
            for name, weight in block.named_parameters()
        ]
        layers.append(ScheduledLayer(block, updates))
    with closing(OverlappedSchedule(layers, accelerator_for(place), order, 2)) as schedule:
        hooks = GradientHooks([each for layer in layers for each in layer.updates], schedule)
        hooks.learning_rate = RATE
        for step in range(STEPS):
            network(batch(step).to(place)).square().sum().backward()
        schedule.finish()
    return [weight.detach().cpu() for weight in network.parameters()]


@pytest.mark.parametrize(
    ("device", "order"),
    [("cuda:1", "layer-wise"), pytest.param("cuda", "zero", marks=pytest.mark.exhaustive)],
)
def test_whole_gradients_give_the_weights_of_adam_on_one_device(device: str, order: Order) -> None:
    with pretended_gpus() as gpus:
        found = offloaded(device, order)
        assert bool(gpus.launches[torch.device("cuda:0")]) == (device == "cuda")
    for pair in zip(found, by_torch(), strict=True):
        torch.testing.assert_close(*pair, rtol=1e-5, atol=1e-6)


def test_sparse_projectors_compute_on_the_gpu() -> None:
    with pretended_gpus() as gpus:
        found = offloaded("cuda:1", "layer-wise", subspace=4)
        assert any("addmm" in name for name in gpus.launches[torch.device("cuda:1")])
    wanted = offloaded("cpu", "layer-wise", subspace=4)
    for pair in zip(found, wanted, strict=True):
        torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-5)


def test_a_tensor_that_must_be_laid_out_anew_is_complete_before_it_is_copied() -> None:
    with pretended_gpus():
        accelerator = accelerator_for(torch.device("cuda:1"))
        tensor = torch.arange(6.0).view(2, 3).to("cuda:1")
        event = accelerator.transfer.record_event()
        [copy] = accelerator.to_host([tensor.t()], event)
        [back] = accelerator.to_device([copy.t()])
        assert (back + tensor).tolist() == [[0, 2, 4], [6, 8, 10]]


def test_a_change_that_waits_for_nobody_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaTransfer, "record_event", lambda transfer: torch.cuda.Event())
    with pretended_gpus() as gpus:
        with pytest.raises(MissingWaitError, match="may still use it"):
            offloaded("cuda", "layer-wise")
        gpus.faults.clear()
