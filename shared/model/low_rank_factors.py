"""The factors A and B of every adapted layer, read from trained numbers for export and merging."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import ModelError
from samara.shared.model.frozen_a import frozen_matrices
from samara.shared.model.layer_selection import features
from samara.shared.model.loading import BaseModel
from samara.shared.protocol.layout import ADAPTER_GROUP, Layout


class LowRankFactors(NamedTuple):
    """The factors of an adapted layer, whose weight becomes W + (alpha / r)·B·A.

    Attributes:
        name: name of the layer in the model's body.
        module: the layer.
        a: A, float32 [r, in].
        b: B, float32 [out, r].
    """

    name: str
    module: Any
    a: NDArray[np.float32]
    b: NDArray[np.float32]


def low_rank_factors(
    base: BaseModel,
    layout: Layout,
    numbers: NDArray[np.float32],
    trained_a: Sequence[NDArray[np.float32]] | None = None,
) -> Iterator[LowRankFactors]:
    """Yield the factors of every adapted layer, in the layout's order.

    Args:
        base: base model of the adapter; its weights are not used.
        layout: layout of the adapter; tensors outside the model are skipped.
        numbers: trained numbers, float32 [d].
        trained_a: A of every adapted layer, float32 [r, in]; None for the frozen matrices.

    Raises:
        ModelError: if the layout belongs to another model.
    """
    names = [tensor.name for tensor in layout.tensors if tensor.group == ADAPTER_GROUP]
    modules = dict(base.body.named_modules())
    if missing := [name for name in names if name not in modules]:
        raise ModelError(
            f"{base.folder}: this model has no layer {missing[0]}; the adapter belongs to another "
            "model"
        )
    sizes = [features(modules[name])[0] for name in names]
    matrices = frozen_matrices(layout, sizes) if trained_a is None else trained_a
    for name, a in zip(names, matrices, strict=True):
        elements, rows = layout.tensor_slice(name)
        b = numbers[elements].reshape(rows, layout.rank)
        yield LowRankFactors(name, modules[name], a, b)
