"""Linear layers with weight-only quantization, multiplied in the compute type.

NF4 is the 4-bit normal float of QLoRA (Dettmers et al., 2023), and INT8 stores one scale per
output. Both layers use the formats of bitsandbytes. They dequantize a whole weight matrix once per
pass, regardless of the number of rows (P-RGE, appendix A.5). Inputs are never quantized. With
rounded activations, as in bitsandbytes' own 8-bit layer on CUDA, the loss would be a step function
of a small perturbation.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from samara.shared.errors import ModelError
from samara.shared.model.products import linear

Quantization = Literal["none", "nf4", "int8"]

NF4_BLOCK = 64
"""Block size of NF4: the number of weights that share one absolute maximum."""

_MISSING = (
    "model.quantization needs bitsandbytes, which cannot be used here ({error}). Install it with "
    "pip install 'samara-fl[quantized]'. On a Jetson, the aarch64 wheels of the package index fail "
    "at the first kernel launch, because they are built for server ARM. Build bitsandbytes there "
    "with -DCOMPUTE_BACKEND=cuda -DCOMPUTE_CAPABILITY=87 (Ampere), or use the Jetson AI Lab's build"
)


class QuantizedLinear(nn.Module, ABC):
    """A layer y = W·x + b with a quantized W.

    Attributes:
        in_features: size of x.
        out_features: size of y.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        """Quantize a weight.

        Args:
            weight: W, [out, in], of any float type, on the torch device that will run the layer.
            bias: b, [out], or None.
            dtype: compute type.
        """
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.dtype = dtype
        self.register_buffer("bias", None if bias is None else bias.to(weight.device, dtype))

    @abstractmethod
    def dequantized(self) -> Tensor:
        """Return W in the compute type, [out, in], computed at every call."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in] to [..., out]."""
        return linear(x, self.dequantized(), self.bias)  # type: ignore[arg-type]


class Nf4Linear(QuantizedLinear):
    """A layer of 4-bit normal floats in blocks of 64, with 4.5 bits per weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__(weight, bias, dtype)
        packed, state = _bitsandbytes().quantize_4bit(
            weight.contiguous(), blocksize=NF4_BLOCK, quant_type="nf4"
        )
        self.register_buffer("packed", packed)
        self.register_buffer("absmax", state.absmax)

    def dequantized(self) -> Tensor:
        """Return W in the compute type, [out, in]."""
        weight: Tensor = torch.ops.bitsandbytes.dequantize_4bit(
            self.packed,
            self.absmax,
            NF4_BLOCK,
            "nf4",
            (self.out_features, self.in_features),
            self.dtype,
        )
        return weight


class Int8Linear(QuantizedLinear):
    """A layer of 8-bit integers with one scale per output feature."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__(weight, bias, dtype)
        codes, largest, _ = _bitsandbytes().int8_vectorwise_quant(
            weight.to(torch.float16).contiguous()
        )
        self.register_buffer("codes", codes.masked_fill(largest[:, None] == 0, 0))
        self.register_buffer("scale", (largest / 127)[:, None])

    def dequantized(self) -> Tensor:
        """Return W in the compute type, [out, in]."""
        weight: Tensor = self.codes * self.scale  # type: ignore[operator]
        return weight.to(self.dtype)


_LAYERS: dict[str, type[QuantizedLinear]] = {"nf4": Nf4Linear, "int8": Int8Linear}


def quantize_linear(
    weight: Tensor, bias: Tensor | None, quantization: Quantization, dtype: torch.dtype
) -> QuantizedLinear:
    """Quantize a weight [out, in], and return its layer on the weight's torch device.

    Raises:
        ModelError: if the weight has entries that are not finite.
    """
    if not bool(torch.isfinite(weight).all()):
        raise ModelError(
            "a weight of the model contains numbers that are not finite; download the model again"
        )
    return _LAYERS[quantization](weight, bias, dtype)


def empty_quantized_linear(
    out_features: int,
    in_features: int,
    buffers: Mapping[str, Tensor],
    quantization: Quantization,
    dtype: torch.dtype,
) -> QuantizedLinear:
    """Create a quantized layer without weights. The caller assigns its tensors later.

    Args:
        out_features: size of the output.
        in_features: size of the input.
        buffers: tensors of the layer by name, on the meta device.
        quantization: nf4 or int8.
        dtype: compute type.
    """
    kind = _LAYERS[quantization]
    layer = kind.__new__(kind)
    nn.Module.__init__(layer)
    layer.out_features, layer.in_features, layer.dtype = out_features, in_features, dtype
    for name, buffer in {"bias": None, **buffers}.items():
        layer.register_buffer(name, buffer)
    return layer


def check_quantization(device: torch.device) -> None:
    """Check that bitsandbytes works on a torch device by quantizing a small matrix in both formats.

    Raises:
        ModelError: if bitsandbytes is missing or fails. The message names the extra, and the builds
            for Jetson boards.
    """
    weight = torch.linspace(-1, 1, 64 * 64, device=device).reshape(64, 64)
    try:
        for kind in _LAYERS.values():
            worst = (kind(weight, None, torch.float32).dequantized() - weight).abs().max()
            if float(worst) > 0.2:
                raise ModelError(_MISSING.format(error=f"its kernels are wrong on {device}"))
    except (RuntimeError, AttributeError, NotImplementedError, OSError) as error:
        raise ModelError(_MISSING.format(error=str(error).splitlines()[0])) from error


def _bitsandbytes() -> Any:
    try:
        import bitsandbytes.functional
    except (ImportError, OSError, RuntimeError) as error:
        raise ModelError(_MISSING.format(error=error)) from error
    return bitsandbytes.functional
