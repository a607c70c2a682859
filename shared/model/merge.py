"""Merging of an adapter into the weights of its base model."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from samara.shared.errors import ModelError
from samara.shared.layout import ADAPTER_GROUP, Layout
from samara.shared.model.frozen_a import frozen_matrices
from samara.shared.model.layer_selection import features
from samara.shared.model.loading import BaseModel


@torch.no_grad()
def merge_adapter(
    base: BaseModel,
    layout: Layout,
    numbers: NDArray[np.float32],
    trained_a: Sequence[NDArray[np.float32]] | None = None,
) -> None:
    """Add (alpha / r)·B·A to the weight of every adapted layer, in place.

    The model then computes, up to rounding, what it computes with the adapter beside it (Hu et al.,
    LoRA, 2021, section 4.1).

    Args:
        base: model without adapters inside, not quantized.
        layout: layout of the adapter; only its tensors inside the model are merged.
        numbers: trained numbers, float32 [elements].
        trained_a: A of every adapted layer, float32 [r, in]; None if they are the frozen ones.

    Raises:
        ModelError: if the layout belongs to another model.
    """
    names = [tensor.name for tensor in layout.tensors if tensor.group == ADAPTER_GROUP]
    modules = dict(base.body.named_modules())
    if missing := [name for name in names if name not in modules]:
        raise ModelError(f"{base.folder}: has no {missing[0]}; the adapter is of another model")
    sizes = [features(modules[name])[0] for name in names]
    matrices = frozen_matrices(layout, sizes) if trained_a is None else trained_a
    for name, a in zip(names, matrices, strict=True):
        elements, rows = layout.tensor_slice(name)
        b = torch.from_numpy(numbers[elements].reshape(rows, layout.rank))
        added = (layout.alpha / layout.rank) * (b @ torch.from_numpy(a))
        weight = modules[name].weight
        assert isinstance(weight, torch.Tensor)
        if type(modules[name]).__name__ == "Conv1D":  # it keeps its weight transposed
            added = added.T
        weight.copy_((weight.float() + added.to(weight.device)).to(weight.dtype))
