"""The parameters and buffers of a block, and placeholders for them while it is not loaded."""

from typing import Any

from torch import Tensor, nn

from samara.shared.model.quantized import QuantizedLinear


class SwappableTensor:
    """A parameter or buffer of a module, which can be replaced by another tensor.

    Args:
        module: module that owns the tensor.
        name: name of the tensor in the module.
        placeholder: tensor on the meta device that stands in for the real tensor.
        is_parameter: whether the tensor is a parameter rather than a buffer.

    Attributes:
        placeholder: tensor on the meta device.
    """

    def __init__(
        self, module: nn.Module, name: str, placeholder: Tensor, is_parameter: bool
    ) -> None:
        self.placeholder = placeholder
        self._tensors: dict[str, Any] = module._parameters if is_parameter else module._buffers
        self._name, self._is_parameter = name, is_parameter

    def swap_in(self, tensor: Tensor) -> None:
        """Make the module compute with a tensor, converted to the placeholder's dtype."""
        value = tensor.to(self.placeholder.dtype)
        if self._is_parameter:
            value = nn.Parameter(value, requires_grad=False)
        self._tensors[self._name] = value

    def swap_out(self) -> None:
        """Put the placeholder back into the module."""
        self._tensors[self._name] = self.placeholder


def swappable_tensors(block: nn.Module) -> dict[str, SwappableTensor]:
    """Return a block's streamed tensors by name: parameters, and buffers of quantized layers."""
    tensors = {}
    for prefix, module in block.named_modules():
        members = [(name, p, True) for name, p in module._parameters.items() if p is not None]
        if isinstance(module, QuantizedLinear):
            members += [(name, b, False) for name, b in module._buffers.items() if b is not None]
        for name, tensor, is_parameter in members:
            full_name = f"{prefix}.{name}" if prefix else name
            tensors[full_name] = SwappableTensor(module, name, tensor, is_parameter)
    return tensors
