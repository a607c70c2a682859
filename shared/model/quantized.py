"""Weight-only quantization of linear layers, token embeddings and heads.

Linear layers use the formats of bitsandbytes. NF4 is the 4-bit normal float of QLoRA (Dettmers et
al., 2023). INT8 has 8-bit integers with one scale per output. A layer dequantizes its whole weight
matrix to the compute type once per pass, regardless of the number of rows (P-RGE, appendix A.5).
Inputs are never quantized: with rounded activations, as in bitsandbytes' own 8-bit layer on CUDA,
the loss would be a step function of a small perturbation.

Outside the blocks, the token embeddings and the head are the largest tensors. They have one row per
token. With both NF4 and INT8, a row is stored as 8-bit integers with one scale.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from samara.shared.errors import ModelError
from samara.shared.model.products import Linear, linear

Quantization = Literal["none", "nf4", "int8"]

NF4_BLOCK = 64
"""Block size of NF4: the number of weights that share one absolute maximum."""

_MISSING = (
    "model.quantization needs bitsandbytes, which cannot be used here ({error}). Install it with "
    "pip install 'samara-fl[quantized]'. On a Jetson, the aarch64 wheels of the package index fail "
    "at the first kernel launch, because they are built for server ARM. Build bitsandbytes there "
    "with -DCOMPUTE_BACKEND=cuda -DCOMPUTE_CAPABILITY=87 (Ampere), or use the Jetson AI Lab's build"
)

_TILE_ROWS = 4096
"""Number of rows of a token table that are quantized or dequantized at a time."""


class QuantizedLinear(nn.Module, ABC):
    """Base class of layers y = W·x + b with a quantized W.

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
        """Dequantize W to the compute type, [out, in]; the result is not cached."""

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


class Int8Head(QuantizedLinear):
    """The last layer of a language model, from features to tokens, with one scale per token."""

    def __init__(
        self, codes: nn.Parameter, scale: Tensor, bias: Tensor | None, dtype: torch.dtype
    ) -> None:
        """Create the head from quantized rows.

        Args:
            codes: int8 [tokens, features], not trainable.
            scale: float32 [tokens, 1].
            bias: b, [tokens], or None.
            dtype: compute type.
        """
        super().__init__(codes, bias, dtype)
        self.codes = codes
        self.register_buffer("scale", scale)

    def dequantized(self) -> Tensor:
        """Return W in the compute type, [tokens, features]."""
        return self.rows(slice(None))

    def rows(self, tokens: slice | list[int]) -> Tensor:
        """Return the rows of some tokens in the compute type, [n, features]."""
        return (self.codes[tokens] * self.get_buffer("scale")[tokens]).to(self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., features] to [..., tokens]."""
        tiles = range(0, self.out_features, _TILE_ROWS)
        parts = [linear(x, self.rows(slice(first, first + _TILE_ROWS))) for first in tiles]
        logits = torch.cat(parts, dim=-1)
        return logits + self.bias if isinstance(self.bias, Tensor) else logits

    def dequantized_layer(self) -> nn.Linear:
        """Return a layer with the same weights in the compute type, which can be trained."""
        layer = nn.Linear(self.in_features, self.out_features, bias=False)
        layer.weight = nn.Parameter(self.dequantized(), requires_grad=False)
        if isinstance(self.bias, Tensor):
            layer.bias = nn.Parameter(self.bias, requires_grad=False)
        return layer


class Int8Embedding(nn.Module):
    """A table of token embeddings with one scale per token.

    Attributes:
        num_embeddings: number of tokens.
        embedding_dim: number of features.
    """

    def __init__(
        self, codes: nn.Parameter, scale: Tensor, factor: float, dtype: torch.dtype
    ) -> None:
        """Create the table from quantized rows.

        Args:
            codes: int8 [tokens, features], not trainable. This is a parameter, because transformers
                takes the device of a network's first parameter for the network's device.
            scale: float32 [tokens, 1].
            factor: number by which the model multiplies all embeddings.
            dtype: compute type.
        """
        super().__init__()
        self.num_embeddings, self.embedding_dim = codes.shape
        self.factor = factor
        self.dtype = dtype
        self.codes = codes
        self.register_buffer("scale", scale)
        # transformers takes a network's type from a float parameter, and some norms have none
        self.typed = nn.Parameter(codes.new_empty(0, dtype=dtype), requires_grad=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids [...] to embeddings [..., features]."""
        rows = self.codes[tokens] * self.get_buffer("scale")[tokens]
        return (rows * self.factor).to(self.dtype)


_LAYERS: dict[str, type[QuantizedLinear]] = {"nf4": Nf4Linear, "int8": Int8Linear}


def quantize_linear(
    weight: Tensor, bias: Tensor | None, quantization: Quantization, dtype: torch.dtype
) -> QuantizedLinear:
    """Quantize a weight [out, in], and return a layer with it on the weight's torch device.

    Raises:
        ModelError: if the weight has entries that are not finite.
    """
    _check_finite(weight)
    return _LAYERS[quantization](weight, bias, dtype)


def _check_finite(weight: Tensor) -> None:
    if not bool(torch.isfinite(weight).all()):
        raise ModelError(
            "a weight of the model contains numbers that are not finite; download the model again"
        )


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


@torch.no_grad()
def quantize_tables(network: Any) -> None:
    """Quantize a network's token embeddings and head to 8 bits, in place.

    Tied tables stay tied.

    Args:
        network: transformers network with loaded tables; see `token_tables`.

    Raises:
        ModelError: if a weight has entries that are not finite.
    """
    if not (tables := token_tables(network)):
        return
    table, *heads = tables
    rows = _int8_rows(table.weight)
    factor = float(getattr(table, "embed_scale", 1))
    _replace(network, table, Int8Embedding(*rows, factor, network.dtype))
    for head in heads:
        rows = rows if head.weight is table.weight else _int8_rows(head.weight)
        _replace(network, head, Int8Head(*rows, head.bias, network.dtype))


def token_tables(network: Any) -> list[Any]:
    """Return the modules that `quantize_tables` quantizes: token embeddings and a language head.

    The list is empty if one of these modules has a class that `quantize_tables` does not know.
    """
    table, head = network.get_input_embeddings(), network.get_output_embeddings()
    is_known = type(table) is nn.Embedding or (
        isinstance(table, nn.Embedding) and hasattr(table, "embed_scale")
    )
    if head is None:
        return [table] if is_known else []
    return [table, head] if is_known and type(head) in (nn.Linear, Linear) else []


def _int8_rows(weight: Tensor) -> tuple[nn.Parameter, Tensor]:
    """Return the rows of a matrix as int8 codes, and the scale of each row, float32 [rows, 1].

    The scale is the number farthest from zero, divided by −128, as in phones' programs
    (`samara.devices.phone.quantization`).
    """
    codes = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scale = torch.empty((len(weight), 1), device=weight.device)
    parts = (torch.split(tensor, _TILE_ROWS) for tensor in (weight, codes, scale))
    for rows, into, of_row in zip(*parts, strict=True):
        farthest = rows.gather(1, rows.abs().argmax(1, keepdim=True)).float()
        of_row.copy_(farthest.where(farthest != 0, -128) / -128)
        into.copy_((rows.float() / of_row).round().clamp(-128, 127))
    _check_finite(scale)
    return nn.Parameter(codes, requires_grad=False), scale


def _replace(network: nn.Module, module: nn.Module, replacement: nn.Module) -> None:
    """Replace a module wherever a network uses it."""
    for parent in network.modules():
        for name, child in parent.named_children():
            if child is module:
                setattr(parent, name, replacement)


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
