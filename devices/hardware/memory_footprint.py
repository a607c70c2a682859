"""How much memory a P-RGE client takes at its peak, part by part."""

from dataclasses import dataclass, fields

from devices.hardware.model_shape import ModelShape
from devices.hardware.profile import DeviceProfile
from devices.hardware.roofline import (
    Workload,
    compute_bytes,
    logit_tile_positions,
    peak_activation_entries,
    stored_bytes,
)

_STATE_BYTES = 8 + 4
"""Of an adapter element: the exact state, and its float32 form."""
_DIRECTION_BYTES = 2
_BUFFERS = 2
"""Streamed blocks in memory: the one that is computed with, and the next."""
_LOGITS_ALIVE = 2
"""Logits and what the loss makes of them, 4 bytes each."""


@dataclass(frozen=True)
class MemoryFootprint:
    """Bytes at the peak of a step; `total` is their sum.

    Attributes:
        runtime: interpreter, libraries, contexts.
        blocks: the blocks' matrices as they are stored; of streamed ones those in the buffers.
        others: embeddings, head and norms, in the compute type.
        adapters: the trained state and the frozen A's.
        directions: of all queries of a step.
        dequantized: the largest matrix in the compute type, which exists while it is multiplied.
        activations: at the widest moment of a pass.
        logits: of the positions that are held at a time.
    """

    runtime: int
    blocks: int
    others: int
    adapters: int
    directions: int
    dequantized: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        """Bytes of the process."""
        return sum(getattr(self, field.name) for field in fields(self))


def memory_footprint(shape: ModelShape, device: DeviceProfile, work: Workload) -> MemoryFootprint:
    """Predict the peak of a step.

    Raises:
        ModelError: if the model has no such blocks to adapt.
    """
    width = compute_bytes(device, work.quantization)
    adapted = [
        linear
        for block in shape.blocks[work.first_adapted(shape) :]
        for linear in block
        if linear.adapted
    ]
    elements = work.rank * sum(linear.outputs for linear in adapted)
    frozen = work.rank * sum(linear.inputs for linear in adapted)
    largest = max(linear.weights for block in shape.blocks for linear in block)
    held = shape.block_weights
    if work.stream == "disk":
        widest = max(sum(linear.weights for linear in block) for block in shape.blocks)
        held = min(held, _BUFFERS * widest)
    alive = max(
        peak_activation_entries(block, work.rows_per_pass, work.sequence, work.sequence)
        for block in set(shape.blocks)
    )
    positions = work.rows_per_pass * work.positions(shape)
    tile = logit_tile_positions(shape.vocabulary, positions, work.tiled) if shape.vocabulary else 0
    return MemoryFootprint(
        runtime=device.memory.runtime_bytes,
        blocks=round(held * stored_bytes(work.quantization)),
        others=shape.other_weights * width,
        adapters=elements * _STATE_BYTES + frozen * width,
        directions=work.queries * elements * _DIRECTION_BYTES,
        dequantized=largest * width if work.quantization in ("int8", "nf4") else 0,
        activations=alive * width,
        logits=tile * shape.vocabulary * 4 * _LOGITS_ALIVE,
    )
