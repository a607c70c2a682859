"""Whole models under an overlapped schedule."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch

from samara.client.offload.accelerator import Accelerator
from samara.client.offload.layer_update import GradientHooks, ImmediateSchedule, LayerUpdate
from samara.client.offload.overlapped_schedule import OverlappedSchedule
from samara.client.offload.projectors import ProjectorPair
from samara.client.offload.scheduled_model import scheduled_layers
from samara.client.offload.service_order import Order
from samara.client.streaming.block_transfer import CpuTransfer
from samara.shared.model.loading import BaseModel, load_base_model

ModelFolder = Callable[[str], Path]


def loaded(folder: Path) -> tuple[BaseModel, list[LayerUpdate]]:
    base = load_base_model(str(folder))
    updates = [
        LayerUpdate(name, weight.requires_grad_(True), ProjectorPair())
        for name, weight in base.network.named_parameters()
    ]
    return base, updates


@pytest.mark.parametrize("family", ["causal", "masked", "encoder"])
def test_every_weight_belongs_to_one_layer(family: str, model_folder: ModelFolder) -> None:
    base, updates = loaded(model_folder(family))
    layers = scheduled_layers(base, updates)
    found = [update.name for layer in layers for update in layer.updates]
    assert sorted(found) == sorted(update.name for update in updates)
    assert [layer.module for layer in layers if layer.module is not base.body] == list(base.blocks)
    assert layers[0].module is base.body
    assert "embed" in layers[0].updates[0].name


def test_layers_without_updates_are_left_out(model_folder: ModelFolder) -> None:
    base, updates = loaded(model_folder("causal"))
    chosen = {id(weight) for weight in base.blocks[-1].parameters()}
    some = [update for update in updates if id(update.weight) in chosen]
    assert [layer.module for layer in scheduled_layers(base, some)] == [base.blocks[-1]]


@pytest.mark.parametrize("order", ["layer-wise", "zero"])
@pytest.mark.parametrize("family", ["causal", "encoder"])
def test_the_bits_are_those_of_immediate_updates(
    family: str, order: Order, model_folder: ModelFolder
) -> None:
    results = []
    for overlapping in (False, True):
        base, updates = loaded(model_folder(family))
        layers = scheduled_layers(base, updates)
        if overlapping:
            with closing(OverlappedSchedule(layers, Accelerator(CpuTransfer()), order)) as schedule:
                train(base, GradientHooks(updates, schedule))
                schedule.finish()
        else:
            train(base, GradientHooks(updates, ImmediateSchedule()))
        results.append([weight.detach() for weight in base.network.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def train(base: BaseModel, hooks: GradientHooks) -> None:
    """Take steps that use the module of the body, but the weight of the head without its module."""
    hooks.learning_rate = 0.01
    table = base.network.get_input_embeddings().weight
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(len(table), (2, 8), generator=generator)
        hidden = base.body(input_ids=ids).last_hidden_state
        head = base.network.get_output_embeddings()
        weight = table if head is None else head.weight
        (hidden @ weight.T).square().mean().backward()
