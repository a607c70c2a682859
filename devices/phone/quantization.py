"""Quantization of a phone's program to 8 or 4 bits.

torchao's weight-only int8 loses its scale when a product is delegated to XNNPACK. The graph
therefore multiplies int8 codes by their scales, as the eager layer does. It then uses a batched
product, which accepts such a computed weight. ExecuTorch's 4-bit form also quantizes inputs. It is
smaller than int8, but adds noise to the projected gradients. ONNX Runtime's 4-bit form quantizes
only weights.
"""

import types

import torch
from torch import Tensor, nn

from samara.devices.phone.extra import MISSING
from samara.shared.errors import ConfigError, DeviceError
from samara.shared.model.loading import BaseModel
from samara.shared.model.quantized import Int8Embedding, Int8Linear

GROUP = 32
"""Number of inputs that share a scale in the 4-bit forms."""


def use_batched_products(base: BaseModel) -> None:
    """Replace the products of INT8 layers by batched products, in place."""
    for module in base.network.modules():
        if isinstance(module, Int8Linear):
            module.forward = types.MethodType(_batched, module)  # type: ignore[method-assign]


def _batched(layer: Int8Linear, x: Tensor) -> Tensor:
    """Multiply [..., in] to [..., out] by the dequantized weight of `Int8Linear.forward`."""
    codes = layer.get_buffer("codes")
    scale = layer.get_buffer("scale")
    bias = layer.bias
    weight = codes.to(layer.dtype) * scale.to(layer.dtype)
    # The copy is needed, because a tensor that is contiguous here may not be so after export.
    flat = x.clone(memory_format=torch.contiguous_format).view(1, -1, layer.in_features)
    product = torch.bmm(flat, weight.t()[None]).view(*x.shape[:-1], layer.out_features)
    return product + bias if isinstance(bias, Tensor) else product


def quantize_to_4_bit(base: BaseModel) -> None:
    """Quantize the blocks to 4-bit weights and 8-bit per-token scaled inputs, in place.

    Raises:
        DeviceError: if torchao is missing.
        ConfigError: if a layer's number of inputs is not a multiple of 32.
    """
    try:
        from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
        from torchao.quantization.granularity import PerGroup
    except (ImportError, OSError) as error:
        raise DeviceError(MISSING.format(error=error)) from error
    block_products(base)
    config = Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4,  # type: ignore[attr-defined]
        weight_granularity=PerGroup(GROUP),
    )
    quantize_(base.blocks, config)


def block_products(base: BaseModel) -> list[nn.Linear]:
    """Return the linear layers of the blocks, which the 4-bit forms quantize.

    Raises:
        ConfigError: if a layer's number of inputs is not a multiple of 32.
    """
    products = []
    for name, module in base.blocks.named_modules():
        if isinstance(module, nn.Linear):
            if module.in_features % GROUP:
                raise ConfigError(
                    f"{name} has {module.in_features} inputs, which is not a multiple of {GROUP}; "
                    f"use --quantization int8"
                )
            products.append(module)
    return products


@torch.no_grad()
def round_to_float16(base: BaseModel) -> None:
    """Round the weights of a model to values that float16 can represent, in place.

    Raises:
        ConfigError: if a weight is too large for float16.
    """
    for name, weight in base.network.named_parameters():
        weight.copy_(weight.half().float())
        if not bool(weight.isfinite().all()):
            raise ConfigError(
                f"{name} has numbers that float16 cannot represent; use --quantization int8"
            )


@torch.no_grad()
def round_to_4_bits(base: BaseModel) -> None:
    """Round the weights of the blocks to values that 4 bits can represent, in place.

    In each row of a weight matrix, 32 consecutive weights share a scale: the weight farthest from
    zero, divided by −8. Each weight becomes an integer from −8 to 7 times this scale. ONNX
    Runtime's symmetric quantizer derives the same integers and scales from the result.

    Raises:
        ConfigError: if a layer's number of inputs is not a multiple of 32.
    """
    for product in block_products(base):
        weight = product.weight
        weight.copy_(_rounded(weight.view(-1, GROUP), 8).view_as(weight))


@torch.no_grad()
def round_tokens_to_8_bits(base: BaseModel) -> None:
    """Round the token embedding table to values that 8 bits can represent, in place.

    The numbers in a token's row share a scale: the number farthest from zero, divided by −128.
    `samara.devices.phone.onnx_weights.store_tables_as_int8` derives the same integers and scales
    from the result. The table of an INT8 model has these 8 bits already. A table that is tied to
    the model's head stays unchanged, because the head is in float32, even if only the rows of label
    words are left of it. The graph of a model without its upper blocks has no head.
    """
    table = base.network.get_input_embeddings()
    if isinstance(table, Int8Embedding):
        return
    weight = table.weight
    head = base.network.get_output_embeddings()
    config = base.network.config.get_text_config()
    is_tied = head is not None and (head.weight is weight or config.tie_word_embeddings)
    if base.depth or not is_tied:
        weight.copy_(_rounded(weight, 128))


def _rounded(groups: Tensor, levels: int) -> Tensor:
    """Round rows [n, m] to integers from −levels to levels − 1, times the row's scale."""
    farthest = groups.gather(1, groups.abs().argmax(1, keepdim=True))
    scale = torch.where(farthest == 0, 1.0, farthest / -levels)
    return (groups / scale).round().clamp(-levels, levels - 1) * scale
