"""The weights of an ONNX graph in files of their own, which a browser fetches and keeps."""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from devices.phone.manifest import WeightsFile

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

SHARD_BYTES = 16 * 2**20
"""Size at which a file of weights is full; a larger tensor has one for itself."""
LEAST_BYTES = 1024
"""Fewest bytes of a tensor that is not left in the graph."""


@dataclass(frozen=True, eq=False)
class SplitGraph:
    """A graph, and its larger weights apart.

    Attributes:
        graph: content of the ``.onnx`` file.
        shards: content of each file of weights, by its name.
    """

    graph: bytes
    shards: dict[str, bytes]

    @property
    def listed(self) -> tuple[WeightsFile, ...]:
        """The files of weights as a manifest lists them."""
        return tuple(
            WeightsFile(name, hashlib.sha256(content).hexdigest(), len(content))
            for name, content in self.shards.items()
        )


def split_weights(model: "ModelProto", stem: str) -> SplitGraph:
    """Move the larger weights of a graph to files of their own, in the graph's order.

    Args:
        model: graph with its weights, which it loses.
        stem: what the files' names begin with.
    """
    from onnx.external_data_helper import set_external_data

    shards: list[bytearray] = []
    for tensor in model.graph.initializer:
        size = len(tensor.raw_data)
        if size < LEAST_BYTES:
            continue
        if not shards or (shards[-1] and len(shards[-1]) + size > SHARD_BYTES):
            shards.append(bytearray())
        name, offset = _shard_name(stem, len(shards) - 1), len(shards[-1])
        shards[-1] += tensor.raw_data
        set_external_data(tensor, name, offset, size)
        tensor.ClearField("raw_data")
    named = {_shard_name(stem, number): bytes(shard) for number, shard in enumerate(shards)}
    return SplitGraph(bytes(model.SerializeToString()), named)


def _shard_name(stem: str, number: int) -> str:
    return f"{stem}.weights-{number:03d}.bin"


def store_as_float16(model: "ModelProto") -> None:
    """Store the larger float32 weights of a graph as float16, which the graph casts back.

    Those that float16 cannot hold exactly stay as they are, so that no result changes. The runtime
    casts when it loads the graph, and computes in float32.

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
        name, stored = tensor.name, f"{tensor.name}.float16"
        tensor.CopyFrom(numpy_helper.from_array(halves, stored))
        casts.append(helper.make_node("Cast", [stored], [name], to=TensorProto.FLOAT))
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(casts + nodes)


def _size(tensor: "TensorProto") -> int:
    return 4 * int(np.prod(tensor.dims, dtype=np.int64))
