"""The places in a block of a model where its tensors belong."""

from typing import Any

import torch
from torch import Tensor, nn

from shared.model.quantized import QuantizedLinear


class SwappableTensor:
    """The place in a model where a tensor belongs, and what stands there while it is away."""

    def __init__(self, module: nn.Module, name: str, empty: Tensor, trained: bool) -> None:
        self.empty = empty
        self._owner: dict[str, Any] = module._parameters if trained else module._buffers
        self._name, self._trained = name, trained

    @property
    def dtype(self) -> torch.dtype:
        """Of the model."""
        return self.empty.dtype

    def put(self, tensor: Tensor) -> None:
        """Have the model compute with a tensor, in the model's own type."""
        own = tensor.to(self.empty.dtype)
        self._owner[self._name] = nn.Parameter(own, requires_grad=False) if self._trained else own

    def clear(self) -> None:
        """Have nothing there to compute with."""
        self._owner[self._name] = self.empty


def swappable_tensors(block: nn.Module) -> dict[str, SwappableTensor]:
    """Every tensor of a block that is streamed: parameters, and what is quantized."""
    slots = {}
    for prefix, module in block.named_modules():
        own = [(name, p, True) for name, p in module._parameters.items() if p is not None]
        if isinstance(module, QuantizedLinear):
            own += [(name, b, False) for name, b in module._buffers.items() if b is not None]
        for name, tensor, trained in own:
            whole = f"{prefix}.{name}" if prefix else name
            slots[whole] = SwappableTensor(module, name, tensor, trained)
    return slots
