"""The predicted peak memory of a P-RGE step, part by part."""

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

STATE_BYTES = 8 + 4
"""Bytes of an adapter element: int64 state and float32 value."""
DIRECTION_BYTES = 2
_BUFFERS = 2
"""Streamed blocks in memory: the one being computed, and the next."""
_LOGITS_ALIVE = 2
"""Copies of the logits in memory at a time: the logits, and an intermediate of the loss."""


@dataclass(frozen=True)
class MemoryFootprint:
    """The bytes at the peak of a step by part; `total` is their sum.

    Attributes:
        runtime: interpreter, libraries and contexts.
        blocks: stored matrices of the blocks; when streaming, of the blocks in the buffers.
        others: embeddings, head and norms in the compute type.
        adapters: trained state and frozen A matrices.
        directions: directions of all queries of a step.
        dequantized: largest matrix in the compute type, kept while it is multiplied.
        activations: activations at the peak of a pass.
        logits: logits of one tile, with the loss's intermediate.
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
        """The bytes of the whole process."""
        return sum(getattr(self, field.name) for field in fields(self))


def memory_footprint(shape: ModelShape, device: DeviceProfile, work: Workload) -> MemoryFootprint:
    """Predict the peak memory of a step.

    Raises:
        ModelError: if the model has fewer blocks than `work.top`.
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
        adapters=elements * STATE_BYTES + frozen * width,
        directions=work.queries * elements * DIRECTION_BYTES,
        dequantized=largest * width if work.quantization in ("int8", "nf4") else 0,
        activations=alive * width,
        logits=tile * shape.vocabulary * 4 * _LOGITS_ALIVE,
    )
