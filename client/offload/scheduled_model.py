"""The layers of a model, as an update schedule sees them."""

from collections.abc import Sequence

from torch import nn

from samara.client.offload.layer_update import LayerUpdate
from samara.client.offload.overlapped_schedule import ScheduledLayer
from samara.shared.model.loading import BaseModel


def scheduled_layers(base: BaseModel, updates: Sequence[LayerUpdate]) -> list[ScheduledLayer]:
    """Return a model's layers in the order of the forward pass, those without updates left out.

    Every block is a layer. Weights outside the blocks are two further layers, one below the blocks
    and one above them, which the model's body waits for: heads are computed by tiles, without their
    module's forward pass, and a shared weight belongs where it is first used.

    Args:
        base: model whose weights are trained.
        updates: work on each trained weight.
    """
    position = {id(weight): index for index, weight in enumerate(base.network.parameters())}
    block_of = {
        id(weight): index
        for index, block in enumerate(base.blocks)
        for weight in block.parameters()
    }
    first = min(position[weight] for weight in block_of if weight in position)
    below: list[LayerUpdate] = []
    above: list[LayerUpdate] = []
    inside: list[list[LayerUpdate]] = [[] for _ in base.blocks]
    for update in updates:
        weight = id(update.weight)
        if weight in block_of:
            inside[block_of[weight]].append(update)
        else:
            (below if position[weight] < first else above).append(update)
    body: nn.Module = base.body
    layers = [
        ScheduledLayer(body, below),
        *(ScheduledLayer(*pair) for pair in zip(base.blocks, inside, strict=True)),
        ScheduledLayer(body, above),
    ]
    return [layer for layer in layers if layer.updates]
