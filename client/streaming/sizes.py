"""What a model will take, from the headers of its files alone; and what is free."""

import re
from dataclasses import dataclass
from pathlib import Path

import psutil

from client.streaming.tensor_locations import tensor_locations
from shared.sections import EMBEDDED_MODEL, ModelSettings

_TYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
_QUANTIZED_BYTES = {"nf4": 4.5 / 8, "int8": 1.0}
_LIMIT_FILES = (
    ("memory", Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.stat", "total_rss"),
    ("", Path("/sys/fs/cgroup"), "memory.max", "memory.stat", "anon"),
)
"""Of the control groups of either version: controller, root, limit, figures, what cannot be
dropped."""
_UNLIMITED = 2**60


@dataclass(frozen=True)
class ModelSizes:
    """Bytes of a model's weights as they will be loaded.

    Attributes:
        outside: of embeddings, head and norms.
        blocks: of all blocks.
        largest: of the largest block.
    """

    outside: int
    blocks: int
    largest: int

    @property
    def total(self) -> int:
        """Of the whole model."""
        return self.outside + self.blocks


def read_model_sizes(model: ModelSettings) -> ModelSizes | None:
    """Of a model; None if its files are not at hand.

    Raises:
        ModelError: if one of its files is damaged.
    """
    if model.path == EMBEDDED_MODEL:
        return ModelSizes(0, 0, 0)
    files = sorted(Path(model.path).expanduser().glob("*.safetensors"))
    if not files:
        return None
    kept, quantized = _TYPE_BYTES[model.dtype], _QUANTIZED_BYTES.get(model.quantization)
    outside, blocks = 0.0, dict[str, float]()
    for file in files:
        for name, place in tensor_locations(file).items():
            count = place.bytes / place.dtype.itemsize
            # the blocks' tensors are named by their layer's number
            if found := re.match(r"(.*?\.)?\d+\.", name):
                each = quantized if quantized and len(place.shape) == 2 else kept
                blocks[found[0]] = blocks.get(found[0], 0.0) + count * each
            else:
                outside += count * kept
    return ModelSizes(int(outside), int(sum(blocks.values())), int(max(blocks.values(), default=0)))


def free_memory() -> int:
    """Bytes that this process may still take, by the machine and by its control group."""
    free: int = psutil.virtual_memory().available
    return min([free, *_left_in_groups()])


def _left_in_groups() -> list[int]:
    left = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for controller, root, limit_file, stat_file, anonymous in _LIMIT_FILES:
        for line in lines:
            _, names, path = line.split(":", 2)
            if controller not in names.split(","):
                continue
            folder = root / path.lstrip("/")
            try:
                limit = (folder / limit_file).read_text().strip()
                figures = dict(map(str.split, (folder / stat_file).read_text().splitlines()))
                if limit != "max" and int(limit) < _UNLIMITED:
                    left.append(max(0, int(limit) - int(figures[anonymous])))
            except (OSError, ValueError, KeyError):
                continue
    return left
