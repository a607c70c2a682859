"""Lowering of a program's method to an ONNX graph for browsers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from samara.devices.phone.extra import MISSING_ONNX
from samara.devices.phone.lowering import Method, warnings_suppressed
from samara.devices.phone.manifest import PhoneQuantization
from samara.devices.phone.onnx_weights import store_as_float16, store_tables_as_int8
from samara.devices.phone.quantization import GROUP
from samara.shared.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    from onnx import ModelProto

INPUTS = ["weights", "ids", "positions"]
"""Names of inputs; only adapters inside the model have weights."""
OUTPUTS = ["scores", "features"]
"""Names of outputs; only readouts have features."""
MAX_GRAPH_BYTES = 2**31 - 2**20
"""Size limit in bytes of a graph with its weights in one file, set by protobuf."""


def lower_to_onnx(
    forward: Method, quantization: PhoneQuantization, products: Sequence[tuple[int, int]]
) -> "ModelProto":
    """Lower the method of a program to an ONNX graph.

    Args:
        forward: method that computes either scores of the base model and features, or scores at
            given adapters.
        quantization: storage of the weights. The weights must already have values that this storage
            represents exactly. ``int4`` turns the products of the blocks into ``MatMulNBits`` with
            groups of 32 inputs
            (`samara.devices.phone.quantization.round_to_4_bits`). ``float16`` stores weights as
            float16. ``int8`` and ``int4`` store the token embeddings as int8 if they were rounded
            (`samara.devices.phone.quantization.round_tokens_to_8_bits`).
        products: number of inputs and outputs of each linear layer in the blocks. Other products,
            such as the product with an adapter's A, keep their weights.

    Returns:
        The graph with its weights.

    Raises:
        DeviceError: if the optional dependencies cannot be used.
        ConfigError: if the graph is too large for one file.
    """
    size = sum(tensor.nbytes for tensor in forward.module.state_dict().values())
    if size > MAX_GRAPH_BYTES:
        raise ConfigError(
            f"the model's weights have {size / 2**30:.1f} GiB, but a program for ONNX Runtime can "
            f"have at most 2 GiB; use --quantization int8, or --runtime executorch"
        )
    with warnings_suppressed():
        try:
            import onnxruntime  # noqa: F401
            import onnxscript  # noqa: F401
        except (ImportError, OSError) as error:
            raise DeviceError(MISSING_ONNX.format(error=error)) from error
        with torch.no_grad():
            program = torch.onnx.export(
                forward.export(),
                dynamo=True,
                verbose=False,
                input_names=INPUTS[-len(forward.inputs) :],
                output_names=OUTPUTS if len(forward.inputs) == 2 else OUTPUTS[:1],
            )
        assert program is not None
        graph = program.model_proto
        _forget_origin(graph)
        if quantization in ("int8", "int4"):
            store_tables_as_int8(graph)
        if quantization == "int4":
            graph = _with_4_bit_products(graph, products)
        elif quantization == "float16":
            store_as_float16(graph)
    return graph


def _forget_origin(model: "ModelProto") -> None:
    """Remove the exporter's notes on source code and this machine's paths from a graph."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.initializer, *graph.value_info):
        del part.metadata_props[:]
        part.doc_string = ""


def _with_4_bit_products(graph: "ModelProto", products: Sequence[tuple[int, int]]) -> "ModelProto":
    """Return the graph with 4-bit weights in the products of the blocks.

    Raises:
        DeviceError: if not every product of the blocks can be quantized.
    """
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    sizes = {tensor.name: tuple(tensor.dims) for tensor in graph.graph.initializer}
    others = [
        node.name
        for node in graph.graph.node
        if node.op_type == "MatMul" and sizes.get(node.input[1]) not in products
    ]
    quantizer = MatMulNBitsQuantizer(
        graph,
        block_size=GROUP,
        is_symmetric=True,
        nodes_to_exclude=others,
        op_types_to_quantize=("MatMul",),
    )
    quantizer.process()
    quantized: ModelProto = quantizer.model.model
    found = sum(node.op_type == "MatMulNBits" for node in quantized.graph.node)
    if found != len(products):
        raise DeviceError(
            f"the model's blocks have {len(products)} linear layers, but {found} products of its "
            f"ONNX graph could be quantized; use --quantization int8"
        )
    return quantized
