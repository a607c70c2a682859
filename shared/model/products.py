"""Matrix products on a CPU, by whichever of torch's libraries is faster.

torch gives float32 products to MKL, which keeps to AVX2 on processors that are not Intel's. oneDNN,
which comes with torch too, takes what a processor has: on a core of an AMD EPYC with AVX-512 it is
twice as fast (docs/measurements.md). It prepares each product for longer, which few rows do not pay
back.
"""

import torch
from torch import Tensor, nn

_FEWEST_ROWS = 16
_ONEDNN = (
    torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """W·x + b.

    Args:
        x: [..., in].
        weight: [out, in].
        bias: [out].

    Returns:
        [..., out].
    """
    if _ONEDNN and torch.is_inference_mode_enabled() and _is_large(x):
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return found
    return nn.functional.linear(x, weight, bias)


def _is_large(x: Tensor) -> bool:
    return x.is_cpu and x.dtype == torch.float32 and x.numel() >= _FEWEST_ROWS * x.shape[-1]


class Linear(nn.Linear):
    """A linear layer whose product is `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        return linear(input, self.weight, self.bias)


def use_faster_products(network: nn.Module) -> None:
    """Have the linear layers of a network take the faster library, in place."""
    for module in network.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear
