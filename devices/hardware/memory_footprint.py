"""The predicted peak memory of a P-RGE step, by part."""

from dataclasses import dataclass, fields, replace

from samara.devices.hardware.model_shape import ModelShape
from samara.devices.hardware.profile import DeviceProfile
from samara.devices.hardware.roofline import (
    Workload,
    compute_bytes,
    logit_tile_positions,
    peak_activation_entries,
    stored_bytes,
)

STATE_BYTES = 8 + 4
"""Bytes of an adapter element: int64 state and float32 value."""
DIRECTION_BYTES = 2
_FLOAT32_BYTES = 4
_BUFFERS = 2
"""Number of streamed blocks in memory: the one being computed, and the next."""
_LOGITS_ALIVE = 2
"""Number of copies of the logits in memory at once: the logits and an intermediate of the loss."""
_FEATURE_COPIES = 3
"""Number of copies of a readout's scores and features during a step.

They are the cache of all examples, the rows of the batch, and the features side by side for the
product.
"""
_SCORE_BYTES = 4 + 8 + 8
"""Bytes per readout score during a step: float32, and two intermediates of the loss in float64."""


@dataclass(frozen=True)
class MemoryFootprint:
    """The peak memory of a step in bytes, by part; `total` is the sum of the parts.

    Attributes:
        runtime: interpreter, libraries and device contexts.
        blocks: stored matrices of the blocks; with streaming, only of the blocks in the buffers.
        others: embeddings, head and norms in the compute type.
        adapters: trained state and frozen A matrices; with a readout alone, its state and the
            representations of the examples.
        directions: directions of all queries of a step.
        dequantized: largest matrix in the compute type, kept during its product.
        activations: activations at the peak of a pass.
        logits: logits of one tile, with an intermediate of the loss; with a readout alone, at least
            the scores of a step.
        trunk: cached outputs of the blocks below the adapters; 0 if the number of examples is
            unknown.
    """

    runtime: int
    blocks: int
    others: int
    adapters: int
    directions: int
    dequantized: int
    activations: int
    logits: int
    trunk: int = 0

    @property
    def total(self) -> int:
        """The bytes of the whole process."""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def of_pass(self) -> int:
        """The bytes of a forward pass, without the weights."""
        return self.dequantized + self.activations + self.logits

    def of_clients(self, together: int, streamed: bool) -> int:
        """Return the bytes of a process in which several clients train at the same time.

        The clients share the libraries and the weights, but each has separate buffers for streamed
        blocks.

        Args:
            together: number of clients that train at the same time.
            streamed: whether the blocks are streamed.
        """
        shared = self.runtime + self.others + (0 if streamed else self.blocks)
        return shared + together * (self.total - shared)


def memory_footprint(shape: ModelShape, device: DeviceProfile, work: Workload) -> MemoryFootprint:
    """Predict the peak memory of a step.

    Raises:
        ModelError: if the model has fewer blocks than `work.top`.
    """
    width = compute_bytes(device, work.quantization)
    is_quantized = work.quantization in ("int8", "nf4")
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
    if work.stream != "off":
        widest = max(sum(linear.weights for linear in block) for block in shape.blocks)
        held = min(held, _BUFFERS * widest)
    alive = max(
        peak_activation_entries(block, work.rows_per_pass, work.sequence, work.sequence)
        for block in set(shape.blocks)
    )
    tables = shape.table_weights if is_quantized else 0  # 8 bits each
    positions = work.rows_per_pass * work.positions(shape)
    tile = logit_tile_positions(shape.vocabulary, positions, work.tiled) if shape.vocabulary else 0
    return MemoryFootprint(
        runtime=device.memory.runtime_bytes,
        blocks=round(held * stored_bytes(work.quantization)),
        others=shape.other_weights * width - tables * (width - 1),
        adapters=elements * STATE_BYTES + frozen * width,
        directions=work.queries * elements * DIRECTION_BYTES,
        dequantized=largest * width if is_quantized else 0,
        activations=alive * width,
        logits=tile * shape.vocabulary * 4 * _LOGITS_ALIVE,
    )


def readout_footprint(
    shape: ModelShape, device: DeviceProfile, work: Workload, labels: int, examples: int
) -> MemoryFootprint:
    """Predict the peak memory of training only a readout: its first pass and its steps.

    The first pass computes the representations of the examples before the first step.

    Args:
        shape: shape of the model.
        device: device profile.
        work: settings of a step; its batch is the number of examples in a forward pass.
        labels: number of labels.
        examples: number of examples of a step; their representations are kept.

    Raises:
        ModelError: if the model has no block.
    """
    alone = replace(work, queries=1, grouping="sequential", differences="forward", top=1, rank=1)
    if shape.vocabulary:  # a label's logits are read at one position
        alone = replace(alone, supervised=1)
    passing = memory_footprint(shape, device, alone)
    elements = (labels - 1) * shape.hidden
    numbers = examples * (labels + shape.hidden) * _FLOAT32_BYTES
    losses = sum(rows * passes for rows, passes in work.passes) // work.batch
    return replace(
        passing,
        adapters=elements * STATE_BYTES + _FEATURE_COPIES * numbers,
        directions=work.queries * elements * DIRECTION_BYTES,
        logits=max(passing.logits, losses * examples * labels * _SCORE_BYTES),
    )
