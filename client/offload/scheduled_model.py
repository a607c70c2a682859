"""Division of a model into layers for an update schedule."""

from collections.abc import Sequence

from torch import nn

from samara.client.offload.layer_update import LayerUpdate
from samara.client.offload.overlapped_schedule import ScheduledLayer
from samara.shared.model.loading import BaseModel


def scheduled_layers(base: BaseModel, updates: Sequence[LayerUpdate]) -> list[ScheduledLayer]:
    """Return a model's layers with updates, in the order of the forward pass.

    Every block is a layer. Weights outside the blocks form two more layers, one below and one above
    the blocks. The model's body waits for the updates of both layers. The head's module cannot wait
    for the upper layer, because heads are computed in tiles, without their module's forward pass. A
    shared weight belongs to the layer of its first use.

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
