"""Matrix products on a CPU with the faster of two libraries in torch, MKL and oneDNN.

By default torch computes float32 products with MKL, which uses only AVX2 on processors not made by
Intel. oneDNN uses all instruction sets. On a core of an AMD EPYC with AVX-512, oneDNN is twice as
fast as MKL (docs/measurements/one-device-costs.md). But oneDNN spends more time on the preparation
of a product, most of all for new shapes. So small products stay with torch's default. oneDNN caches
a preparation of half a MiB for each set of shapes, by default up to 1,024 of them. A micro-batch
needs about ten, so this module lowers the limit to 64.
"""

import os

import torch
from torch import Tensor, nn

_FEWEST_ROWS = 16
_FEWEST_MULTIPLICATIONS = 2**21
_KEPT_SHAPES = 64
# oneDNN reads this variable at its first product
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_KEPT_SHAPES))
_ONEDNN = (
    torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute W·x + b.

    Args:
        x: input, [..., in].
        weight: W, [out, in].
        bias: b, [out].

    Returns:
        [..., out].
    """
    if _ONEDNN and torch.is_inference_mode_enabled() and _is_large(x, weight):
        output: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return output
    return nn.functional.linear(x, weight, bias)


def _is_large(x: Tensor, weight: Tensor) -> bool:
    return (
        x.is_cpu
        and x.dtype == torch.float32
        and x.numel() >= _FEWEST_ROWS * x.shape[-1]
        and x.numel() * len(weight) >= _FEWEST_MULTIPLICATIONS
    )


class Linear(nn.Linear):
    """A linear layer that computes its product with `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """Map [..., in] to [..., out]."""
        return linear(input, self.weight, self.bias)


def use_faster_products(network: nn.Module) -> None:
    """Make the linear layers of a network use the faster library, in place."""
    for module in network.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear
