"""The predicted cost of a first-order training step, with or without a host to offload to.

Zero-Offload and LSP-Offload keep the weights on the accelerator, and the optimizer on the host
(Chen et al., LSP-Offload, sections 3 and 4). Optimizer states have the same precision as the
weights, as in the paper's tables.
"""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from samara.client.offload.iteration_time import (
    StageSeconds,
    layerwise_iteration,
    zero_offload_iteration,
)
from samara.devices.hardware.model_shape import Linear, ModelShape
from samara.devices.hardware.profile import DeviceProfile
from samara.devices.hardware.roofline import Workload, base_pass_time

FirstOrderMethod = Literal["fo-adam", "lora", "zero-offload", "lsp"]
WIDTH = {"fp32": 4, "fp16": 2}
"""Bytes of a weight, a gradient, or an Adam moment."""
STATES = 3
"""Number of values that Adam keeps beside a trained weight: gradient, first and second moment."""
POSITION_BYTES = 8
"""Bytes of the index of a projector's nonzero, int64."""
_ADAM_MOVES = 7
"""Number of values that Adam reads or writes per trained weight.

Adam reads the weight and its states, and writes all of them except the gradient.
"""
_LOGITS_ALIVE = 3
"""Number of float32 copies of the logits after a forward pass: logits, log-softmax, gradient."""
_HEAD_VECTORS = 3
"""Number of vectors of hidden size that the head keeps per token: its input, and two of the norm.
"""


@dataclass(frozen=True)
class FirstOrderWorkload:
    """The settings of a first-order step that decide its time and memory.

    Attributes:
        method: training method, which determines the trained parameters and where the optimizer
            runs.
        sequence: tokens of an example.
        batch: examples of a step.
        precision: type of weights, gradients and optimizer states.
        subspace: s, number of rows and of columns of a compressed gradient.
        nonzeros: r, number of nonzeros in a row of a projector.
        rank: rank of LoRA's matrices.
        layerwise: whether Zero-Offload transfers and updates layer by layer, as LSP-Offload does.
        checkpointing: whether the backward pass recomputes the activations of each block.
    """

    method: FirstOrderMethod
    sequence: int = 512
    batch: int = 1
    precision: Literal["fp32", "fp16"] = "fp16"
    subspace: int = 512
    nonzeros: int = 16
    rank: int = 16
    layerwise: bool = False
    checkpointing: bool = True


@dataclass(frozen=True)
class FirstOrderMemory:
    """The memory at the peak of a step: the bytes of each part, and their sum `total`.

    A part that is not in this memory has 0 bytes.

    Attributes:
        runtime: interpreter, libraries and device contexts.
        weights: weights of the model.
        added: LoRA matrices, or projectors with their indices.
        gradients: gradients.
        optimizer: first and second moments of Adam.
        activations: activations at the peak, with logits.
    """

    runtime: int = 0
    weights: int = 0
    added: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0

    @property
    def total(self) -> int:
        """The bytes of all parts."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class FirstOrderEstimate:
    """The predicted time and memory of a first-order step.

    Attributes:
        device: name of the device.
        model: name of the model.
        work: settings of the step.
        stages: seconds of each stage without overlap.
        seconds: seconds of an iteration, in which the stages overlap according to the schedule.
        resident_seconds: seconds of an iteration with Adam on an accelerator that has enough
            memory.
        memory: bytes on the accelerator.
        host_memory: bytes on the host.
        usable_bytes: bytes of accelerator memory available to the process.
        host_bytes: size of the host's memory in bytes; None if the method needs no host.
        remedies: training methods that fit; empty if this method fits.
    """

    device: str
    model: str
    work: FirstOrderWorkload
    stages: StageSeconds
    seconds: float
    resident_seconds: float
    memory: FirstOrderMemory
    host_memory: FirstOrderMemory
    usable_bytes: int
    host_bytes: int | None
    remedies: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Return whether the method's data fit in both memories."""
        host = self.host_bytes is None or self.host_memory.total <= self.host_bytes
        return host and self.memory.total <= self.usable_bytes

    def as_json(self) -> dict[str, Any]:
        """Return the estimate as a JSON object, with a nested object for each kind of part."""
        return {
            "device": self.device,
            "model": self.model,
            **asdict(self.work),
            "step_seconds": self.seconds,
            "step_parts_seconds": asdict(self.stages),
            "resident_step_seconds": self.resident_seconds,
            "peak_memory_bytes": self.memory.total,
            "peak_memory_parts_bytes": asdict(self.memory),
            "usable_memory_bytes": self.usable_bytes,
            "host_memory_bytes": self.host_memory.total,
            "host_memory_parts_bytes": asdict(self.host_memory),
            "fits": self.fits,
            "would_fit": list(self.remedies),
        }


def estimate_first_order(
    shape: ModelShape, device: DeviceProfile, work: FirstOrderWorkload
) -> FirstOrderEstimate:
    """Predict time and memory of a first-order step.

    Raises:
        ConfigError: if the sequence is longer than the model's context, or the method offloads and
            the device has no separate host.
    """
    shape.check_length(work.sequence)
    result = _estimate(shape, device, work)
    if result.fits:
        return result
    others = (
        method
        for method in get_args(FirstOrderMethod)
        if device.host is not None or method in ("fo-adam", "lora")
    )
    fitting = (
        f"--optimizer {other}"
        for other in others
        if _estimate(shape, device, replace(work, method=other)).fits
    )
    return replace(result, remedies=tuple(fitting))


def trained_parameters(shape: ModelShape, work: FirstOrderWorkload) -> int:
    """Return the number of values that the optimizer updates.

    LSP-Offload and LoRA train only the linear layers of the blocks.
    """
    linears = [linear for block in shape.blocks for linear in block]
    match work.method:
        case "lora":
            return sum(work.rank * (linear.inputs + linear.outputs) for linear in linears)
        case "lsp":
            return sum(_compressed(linear, work.subspace) for linear in linears)
        case _:
            return shape.block_weights + shape.other_weights


def projector_bytes(shape: ModelShape, subspace: int, nonzeros: int, width: int) -> int:
    """Return the bytes of all pairs of sparse projectors (LSP-Offload, definition 1), with indices.

    A side of a matrix that is not longer than the subspace is not projected. A row has at most as
    many nonzeros as the subspace has dimensions. `width` is the number of bytes of a value.
    """
    sides = (
        side
        for block in shape.blocks
        for linear in block
        for side in (linear.inputs, linear.outputs)
    )
    rows = sum(side for side in sides if side > subspace)
    return rows * min(nonzeros, subspace) * (width + POSITION_BYTES)


def _compressed(linear: Linear, subspace: int) -> int:
    """Return the number of entries of P'GQ.

    Here the projectors P and Q compress a layer's gradient G.
    """
    return min(subspace, linear.inputs) * min(subspace, linear.outputs)


def _estimate(
    shape: ModelShape, device: DeviceProfile, work: FirstOrderWorkload
) -> FirstOrderEstimate:
    stages, update = _stages(shape, device, work)
    if work.method in ("fo-adam", "lora"):
        seconds = stages.compute + update
    elif work.method == "zero-offload" and not work.layerwise:
        seconds = zero_offload_iteration(stages)
    else:
        seconds = layerwise_iteration(stages)
    resident_stages, resident_update = _stages(shape, device, replace(work, method="fo-adam"))
    offloads = work.method in ("zero-offload", "lsp")
    memory = _memory(shape, device, work)
    return FirstOrderEstimate(
        device=device.name,
        model=shape.name,
        work=work,
        stages=stages,
        seconds=seconds,
        resident_seconds=resident_stages.compute + resident_update,
        memory=memory,
        host_memory=estimate_host_memory(shape, work, stages),
        usable_bytes=device.usable_bytes,
        host_bytes=device.offload_host.bytes if offloads else None,
    )


def _stages(
    shape: ModelShape, device: DeviceProfile, work: FirstOrderWorkload
) -> tuple[StageSeconds, float]:
    """Return the seconds of the stages, and the seconds of an update on the accelerator."""
    width = WIDTH[work.precision]
    bandwidth = device.memory.bandwidth * device.timing.bandwidth_share
    reads = Workload(
        sequence=work.sequence, batch=work.batch, quantization=work.precision, tiled=False
    )
    forward = base_pass_time(shape, device, reads).total
    backward = forward * (3 if work.checkpointing else 2)
    trained = trained_parameters(shape, work)
    layers = len(shape.blocks)
    if work.method in ("fo-adam", "lora"):
        update = trained * width * _ADAM_MOVES / bandwidth
        return StageSeconds(forward, backward, 0.0, 0.0, 0.0, layers), update
    host = device.offload_host
    if work.method == "lsp":
        # Compression reads every gradient; decompression reads and writes every weight.
        moved = 3 * shape.block_weights * width / bandwidth
        products = 2 * 2 * shape.block_weights * work.nonzeros / device.compute.fp32
        backward += max(moved, products)
    stages = StageSeconds(
        forward=forward,
        backward=backward,
        offload=trained * width / host.to_host,
        update=trained / host.updates,
        upload=trained * width / host.to_device,
        layers=layers,
    )
    return stages, 0.0


def estimate_host_memory(
    shape: ModelShape, work: FirstOrderWorkload, stages: StageSeconds
) -> FirstOrderMemory:
    """Return the peak bytes on the host during a step: Adam's moments, and gradients that wait.

    In Zero-Offload's order, all gradients wait on the host until the last gradient arrives. The
    updates of one layer are in memory at the same time. With the layer-wise schedule, the host has
    the gradients and updates of one layer, and the gradients that have arrived in the backward pass
    but are not yet processed. The minimum is one arriving layer, one layer with its updates, and
    one returning layer.

    Args:
        shape: shape of the model.
        work: settings of the step.
        stages: seconds of the step's stages.
    """
    if work.method in ("fo-adam", "lora"):
        return FirstOrderMemory()
    width = WIDTH[work.precision]
    trained = trained_parameters(shape, work)
    if work.method == "lsp":
        layer = max(
            sum(_compressed(linear, work.subspace) for linear in block) for block in shape.blocks
        )
    else:
        layer = max(_largest_block(shape), _embedding(shape))
    if work.method == "zero-offload" and not work.layerwise:
        gradients = trained + layer
    else:
        arriving = max(stages.backward, stages.offload)
        behind = max(0.0, 1 - arriving / stages.update) if stages.update else 0.0
        gradients = max(int(trained * behind) + 2 * layer, 4 * layer)
    return FirstOrderMemory(gradients=gradients * width, optimizer=(STATES - 1) * trained * width)


def _largest_block(shape: ModelShape) -> int:
    return max(sum(linear.weights for linear in block) for block in shape.blocks)


def _embedding(shape: ModelShape) -> int:
    return shape.vocabulary * shape.hidden


def _memory(shape: ModelShape, device: DeviceProfile, work: FirstOrderWorkload) -> FirstOrderMemory:
    """Return the peak bytes on the accelerator by part."""
    width = WIDTH[work.precision]
    trained = trained_parameters(shape, work)
    moments = (STATES - 1) * trained * width
    added = optimizer = 0
    match work.method:
        case "fo-adam":
            optimizer = moments
        case "lora":
            optimizer = moments
            added = trained * width
        case "lsp":
            added = projector_bytes(shape, work.subspace, work.nonzeros, width)
    activations, gradients = max(_alive_in_a_pass(shape, work), key=sum)
    return FirstOrderMemory(
        runtime=device.memory.runtime_bytes,
        weights=(shape.block_weights + shape.other_weights) * width,
        added=added,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
    )


def _alive_in_a_pass(shape: ModelShape, work: FirstOrderWorkload) -> list[tuple[int, int]]:
    """Return the bytes of activations and of gradients at each moment that may be the peak.

    The inputs and outputs of all blocks' linear layers are kept for the backward pass. With
    checkpointing, they are kept for one block only, along with the input of every block. The
    gradient of an activation is as large as the activation. The gradients of the widest activations
    exist at the same time.

    A weight's gradient is freed as soon as the optimizer or the link has taken it. With
    Zero-Offload, the gradients of one layer wait for the link while the gradients of the next layer
    are computed. With the layer-wise schedule, the update of a third layer arrives at the same
    time.
    """
    width = WIDTH[work.precision]
    tokens = work.sequence * work.batch
    vector = tokens * width
    matrix = max(linear.weights for block in shape.blocks for linear in block) * width
    inner = [
        vector * sum(linear.inputs + linear.outputs for linear in block) for block in shape.blocks
    ]
    if work.checkpointing:
        kept = vector * shape.hidden * len(inner)
        again = max(inner)
    else:
        kept = sum(inner)
        again = 0
    sides = [side for linear in shape.blocks[0] for side in (linear.inputs, linear.outputs)]
    wide = vector * max(sides) * sides.count(max(sides))
    before_attention = vector * sum(
        linear.inputs + linear.outputs for linear in shape.blocks[0] if not linear.positionwise
    )
    logits = tokens * shape.vocabulary * 4
    head = vector * shape.hidden * _HEAD_VECTORS
    embedding = _embedding(shape) * width if work.method in ("fo-adam", "zero-offload") else 0
    waiting = 0
    of_a_block = matrix
    if work.method == "lora":
        waiting = trained_parameters(shape, work) * width
        of_a_block = 0
    elif work.method == "zero-offload":
        of_a_block = _largest_block(shape) * width
        waiting = max(of_a_block, embedding) * (2 if work.layerwise else 1)
    return [
        (kept + head + _LOGITS_ALIVE * logits, 0),
        (kept + head + logits, embedding),
        (kept + again + wide, waiting + min(matrix, of_a_block)),
        (kept + before_attention, waiting + of_a_block),
        (vector * shape.hidden, waiting + embedding),
    ]
