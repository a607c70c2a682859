"""Estimation of a model's size in memory from the headers of its files."""

import re
from dataclasses import dataclass
from pathlib import Path

from samara.client.streaming.tensor_locations import tensor_locations
from samara.shared.model.model_folder import check_weights, find_checkpoint, weight_files
from samara.shared.settings.sections import EMBEDDED_MODEL, ModelSettings

_TYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
_QUANTIZED_BYTES = {"nf4": 4.5 / 8, "int8": 1.0}


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a model's weights after loading, in bytes.

    Attributes:
        outside: size of embeddings, head and norms.
        blocks: total size of all blocks.
        largest: size of the largest block.
    """

    outside: int
    blocks: int
    largest: int

    @property
    def total(self) -> int:
        """Size of the whole model, in bytes."""
        return self.outside + self.blocks


def read_model_sizes(model: ModelSettings) -> ModelSizes | None:
    """Return a model's sizes; None if no local folder holds its safetensors files.

    Raises:
        ModelError: if one of the model's files is damaged, or its weights are quantized.
    """
    if model.path == EMBEDDED_MODEL:
        return ModelSizes(0, 0, 0)
    folder = Path(model.path).expanduser()
    checkpoint = find_checkpoint(folder)
    if checkpoint is None or "safetensors" not in checkpoint.name:
        return None
    check_weights(folder)
    full_bytes = _TYPE_BYTES[model.dtype]
    matrix_bytes = _QUANTIZED_BYTES.get(model.quantization, full_bytes)
    outside, blocks = 0.0, dict[str, float]()
    for file in weight_files(folder):
        for name, location in tensor_locations(file).items():
            count = location.bytes / location.dtype.itemsize
            # Only tensors in blocks have names with a layer's number.
            if block := re.match(r"(.*?\.)?\d+\.", name):
                each = matrix_bytes if len(location.shape) == 2 else full_bytes
                blocks[block[0]] = blocks.get(block[0], 0.0) + count * each
            else:
                outside += count * full_bytes
    return ModelSizes(int(outside), int(sum(blocks.values())), int(max(blocks.values(), default=0)))
