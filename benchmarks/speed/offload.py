"""First-order training steps with an optimizer on the host, on models with random weights."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.speed.shapes import random_base
from samara.client.offload.accelerator import Accelerator
from samara.client.offload.layer_update import (
    GradientHooks,
    ImmediateSchedule,
    LayerUpdate,
    UpdateSchedule,
)
from samara.client.offload.overlapped_schedule import OverlappedSchedule, ScheduledLayer
from samara.client.offload.projectors import ProjectorPair
from samara.client.offload.service_order import Order
from samara.shared.model.layer_selection import is_linear

NONZEROS, LEARNING_RATE, SEQUENCE = 16, 1e-5, 256
CPU = torch.device("cpu")


def new_network(shape: str, device: torch.device = CPU) -> Any:
    """Return a Llama with random float32 weights and activation checkpointing."""
    network = random_base(shape, "none", torch.float32, device).network.requires_grad_(True)
    network.activation_checkpointing_enable({"use_reentrant": False})
    network.config.use_cache = False
    return network.train()


@contextlib.contextmanager
def scheduled(
    layers: list[ScheduledLayer], accelerator: Accelerator, order: Order | None, most: int | None
) -> Iterator[UpdateSchedule]:
    """Yield a schedule by which backward passes inside the context update the layers.

    Args:
        layers: layers in the order of the forward pass.
        accelerator: accelerator that computes.
        order: order of the transfers; None means immediate updates on the accelerator.
        most: maximum number of layers with gradients on the accelerator at the same time.
    """
    updates = [update for layer in layers for update in layer.updates]
    schedule: ImmediateSchedule | OverlappedSchedule = ImmediateSchedule()
    with contextlib.ExitStack() as stack:
        if order is not None:
            schedule = OverlappedSchedule(layers, accelerator, order, most)
            stack.callback(schedule.close)
        GradientHooks(updates, schedule).learning_rate = LEARNING_RATE
        yield schedule


def scheduled_layers(network: Any, subspace: int | None) -> list[ScheduledLayer]:
    """Return the layers to train, in the order of the forward pass.

    With a subspace these are only the matrices of the blocks.
    """
    model, layers = network.model, []
    if subspace is None:
        parts = [[model.embed_tokens], *([block] for block in model.layers)]
        for modules in [*parts, [model.norm, network.lm_head]]:
            weights = [weight for module in modules for weight in module.parameters()]
            updates = [LayerUpdate("", weight, ProjectorPair()) for weight in weights]
            layers.append(ScheduledLayer(modules[0], updates))
        return layers
    network.requires_grad_(False)
    for index, block in enumerate(model.layers):
        updates = []
        for number, (name, module) in enumerate(block.named_modules()):
            if is_linear(module):
                weight: nn.Parameter = module.weight.requires_grad_(True)
                rows, columns = weight.shape
                pair = ProjectorPair.random(
                    (rows, columns), subspace, NONZEROS, (index, number), weight.device
                )
                updates.append(LayerUpdate(name, weight, pair))
        layers.append(ScheduledLayer(block, updates))
    return layers


def training_step(
    network: Any, accelerator: Accelerator, batch: int, length: int = SEQUENCE
) -> Callable[[], None]:
    """Return a function that runs a forward and a backward pass over random tokens."""
    tokens = torch.randint(2, network.config.vocab_size, (batch, length)).to(network.device)

    def step() -> None:
        with accelerator.computing("forward", 0):
            network(input_ids=tokens, labels=tokens).loss.backward()

    return step
