"""Separate files for the weights of an ONNX graph, which browsers download and cache."""

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from samara.devices.phone.manifest import WeightsFile

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

SHARD_BYTES = 16 * 2**20
"""Target size in bytes of a file of weights; a larger tensor gets a file to itself."""
LEAST_BYTES = 1024
"""Minimum size in bytes of a tensor that is moved out of the graph."""


@dataclass(frozen=True, eq=False)
class SplitGraph:
    """A graph separated from its larger weights.

    Attributes:
        graph: content of the ``.onnx`` file.
        shards: content of the weight files by name.
    """

    graph: bytes
    shards: dict[str, bytes]

    @property
    def listed(self) -> tuple[WeightsFile, ...]:
        """The weight files as a manifest lists them."""
        return tuple(
            WeightsFile(name, hashlib.sha256(content).hexdigest(), len(content))
            for name, content in self.shards.items()
        )


def split_weights(model: "ModelProto", stem: str) -> SplitGraph:
    """Move the larger weights of a graph to separate files, in the graph's order.

    Args:
        model: graph with its weights; the larger weights are removed from it.
        stem: prefix of the files' names.
    """
    from onnx.external_data_helper import set_external_data

    shards: list[bytearray] = []
    for tensor in model.graph.initializer:
        size = len(tensor.raw_data)
        if size < LEAST_BYTES:
            continue
        if not shards or (shards[-1] and len(shards[-1]) + size > SHARD_BYTES):
            shards.append(bytearray())
        name = _shard_name(stem, len(shards) - 1)
        offset = len(shards[-1])
        shards[-1] += tensor.raw_data
        set_external_data(tensor, name, offset, size)
        tensor.ClearField("raw_data")
    named = {_shard_name(stem, number): bytes(shard) for number, shard in enumerate(shards)}
    return SplitGraph(bytes(model.SerializeToString()), named)


def _shard_name(stem: str, number: int) -> str:
    return f"{stem}.weights-{number:03d}.bin"


def store_as_float16(model: "ModelProto") -> None:
    """Store the larger float32 weights of a graph as float16, and add casts to float32.

    A tensor that float16 cannot represent exactly stays unchanged, so that no result changes. The
    runtime casts the weights when it loads the graph, and computes in float32.

    Args:
        model: graph, changed in place.
    """
    from onnx import TensorProto, helper, numpy_helper

    casts = []
    for tensor in model.graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or _size(tensor) < LEAST_BYTES:
            continue
        values = numpy_helper.to_array(tensor)
        with np.errstate(over="ignore"):
            halves = values.astype(np.float16)
        if not np.array_equal(halves.astype(np.float32), values):
            continue
        name = tensor.name
        stored = f"{tensor.name}.float16"
        tensor.CopyFrom(numpy_helper.from_array(halves, stored))
        casts.append(helper.make_node("Cast", [stored], [name], to=TensorProto.FLOAT))
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(casts + nodes)


def store_tables_as_int8(model: "ModelProto") -> None:
    """Store a graph's lookup tables as int8, with one scale per row.

    A row becomes float32 when it is looked up. A table stays unchanged if int8 cannot represent it
    exactly, or if another operation of the graph uses it, so that no result changes.

    Args:
        model: graph, changed in place.
    """
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    nodes = []
    tables = {one.name: one for one in graph.initializer if _size(one) >= LEAST_BYTES}
    uses = Counter(name for node in graph.node for name in node.input)
    for node in graph.node:
        table = tables.get(node.input[0]) if _looks_up_rows(node) else None
        coded = _codes_and_scales(table) if table and uses[table.name] == 1 else None
        if table is None or coded is None:
            nodes.append(node)
            continue
        (row,), name, rows = node.output, table.name, node.input[1]
        graph.initializer.remove(table)
        for kind, values in zip(("codes", "scale"), coded, strict=True):
            graph.initializer.append(numpy_helper.from_array(values, f"{name}.{kind}"))
            nodes.append(helper.make_node("Gather", [f"{name}.{kind}", rows], [f"{row}.{kind}"]))
        cast = helper.make_node("Cast", [f"{row}.codes"], [f"{row}.cast"], to=TensorProto.FLOAT)
        nodes += [cast, helper.make_node("Mul", [f"{row}.cast", f"{row}.scale"], [row])]
    del graph.node[:]
    graph.node.extend(nodes)


def _looks_up_rows(node: "NodeProto") -> bool:
    return node.op_type == "Gather" and not any(one.i for one in node.attribute)  # axis 0


def _codes_and_scales(table: "TensorProto") -> tuple[NDArray[np.int8], NDArray[np.float32]] | None:
    """Return a table's codes [n, m] and row scales [n, 1]; None if they would change a value."""
    from onnx import TensorProto, numpy_helper

    if table.data_type != TensorProto.FLOAT or len(table.dims) != 2:
        return None
    values = numpy_helper.to_array(table)
    farthest = np.take_along_axis(values, np.abs(values).argmax(1)[:, None], 1)
    scales = np.where(farthest == 0, np.float32(1), farthest / np.float32(-128))
    codes = np.rint(values / scales)
    if codes.min() < -128 or codes.max() > 127 or not np.array_equal(codes * scales, values):
        return None
    return codes.astype(np.int8), scales


def _size(tensor: "TensorProto") -> int:
    return 4 * int(np.prod(tensor.dims, dtype=np.int64))
