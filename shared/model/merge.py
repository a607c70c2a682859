"""Merging an adapter into the weights of its base model."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from samara.shared.model.loading import BaseModel
from samara.shared.model.low_rank_factors import low_rank_factors
from samara.shared.protocol.layout import Layout


@torch.no_grad()
def merge_adapter(
    base: BaseModel,
    layout: Layout,
    numbers: NDArray[np.float32],
    trained_a: Sequence[NDArray[np.float32]] | None = None,
) -> None:
    """Add (alpha / r)·B·A to the weight of every adapted layer, in place.

    Up to rounding, the model then returns the same outputs as with a separate adapter (Hu et al.,
    LoRA, 2021, section 4.1).

    Args:
        base: unquantized model without injected adapters.
        layout: layout of the adapter; only its tensors inside the model are merged.
        numbers: elements of all tensors, float32 [elements].
        trained_a: A of every adapted layer, float32 [r, in]; None for the frozen matrices.

    Raises:
        ModelError: if the layout belongs to another model.
    """
    for layer in low_rank_factors(base, layout, numbers, trained_a):
        product = torch.from_numpy(layer.b) @ torch.from_numpy(layer.a)
        added = (layout.alpha / layout.rank) * product
        weight = layer.module.weight
        assert isinstance(weight, torch.Tensor)
        if type(layer.module).__name__ == "Conv1D":  # Conv1D keeps its weight transposed
            added = added.T
        weight.copy_((weight.float() + added.to(weight.device)).to(weight.dtype))
