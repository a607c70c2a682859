"""The predicted cost of a zeroth-order step on all parameters, in memory or streamed.

A step of q directions is 2·q forward passes, and four visits to every parameter for each
direction: three that perturb and restore it, and one that updates it (MeZO, algorithm 1). Streamed,
every block travels to the accelerator and back once a step, while others compute (ZO2, sections
5.2 and 5.4). docs/measurements/devices.md has the published cells beside what is predicted.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from samara.devices.hardware.model_shape import ModelShape
from samara.devices.hardware.profile import DeviceProfile, Stream
from samara.devices.hardware.roofline import (
    Workload,
    base_pass_time,
    logit_tile_positions,
    peak_activation_entries,
)

Precision = Literal["fp32", "fp16"]
WIDTH: dict[Precision, int] = {"fp32": 4, "fp16": 2}
"""Bytes of a weight in the type that it is computed with."""
MASTER_BYTES = 4
"""Bytes of a parameter in the copy that perturbations are made from, float32."""
BUFFERS = 3
"""Blocks on the accelerator when they are streamed: one arrives, one computes, one leaves."""
DIRECTION_TRAFFIC = 42
"""Numbers of the weights' type that the four visits of a direction read or write for each
parameter; fitted."""
SCORE_TRAFFIC = 12
"""Times that an attention score in memory is read or written in a pass; fitted. About as many as
in transformers' eager attention: product, scale, mask, maximum, softmax, dropout, product."""
TEMPORARIES = 3
"""Tensors as large as a parameter while the published programs perturb it: z, and two products."""
SCORE_COPIES = 2.5
"""Attention scores of a block that are in memory at the peak of the published programs; fitted."""
LOGIT_BYTES: dict[Precision, float] = {"fp32": 26.0, "fp16": 20.0}
"""Bytes of a logit at the peak of the published programs, with the loss's intermediates; fitted,
and in FP16 set by hand."""
HIDDEN_COPIES = 8
"""Hidden states in memory beside the attention scores of the published programs; fitted."""
_CHUNK_BYTES = 2**24 * (2 + 4 + 4)
"""Bytes of the part of a direction that is in memory at once, with its intermediates, as in
`samara.client.spaces.space`."""
_LOGITS_ALIVE = 2 * 4
"""Bytes of a logit in float32, with an intermediate of the loss."""


@dataclass(frozen=True)
class FullParameterWorkload:
    """The settings of a step that decide its time and memory.

    Attributes:
        sequence: tokens of an example.
        batch: examples of a step.
        queries: q, directions of a step.
        precision: type that the model computes with.
        stream: storage of the blocks between their uses.
        in_place: whether the parameters themselves are perturbed, and not a copy in float32.
        published: whether the step is computed as in the programs of MeZO and ZO2: in place, with
            attention scores and all logits in memory, and directions a parameter at a time.
    """

    sequence: int = 64
    batch: int = 1
    queries: int = 1
    precision: Precision = "fp16"
    stream: Stream = "off"
    in_place: bool = False
    published: bool = False

    @property
    def keeps_copy(self) -> bool:
        """Return whether a copy of the parameters in float32 is kept."""
        return not (self.in_place or self.published)


@dataclass(frozen=True)
class FullParameterTime:
    """The seconds of a step by part; `total` is their sum.

    Attributes:
        passes: forward passes.
        directions: drawing and applying directions.
        transfers: waiting for blocks that are streamed.
    """

    passes: float
    directions: float
    transfers: float = 0.0

    @property
    def total(self) -> float:
        """The seconds of the whole step."""
        return self.passes + self.directions + self.transfers


@dataclass(frozen=True)
class FullParameterMemory:
    """The bytes at the peak of a step by part; `total` is their sum.

    Attributes:
        runtime: interpreter, libraries and contexts.
        weights: weights that the model computes with; when streaming, those outside the blocks.
        copy: parameters in float32 that perturbations are made from; likewise.
        buffers: blocks that are streamed.
        directions: directions and their intermediates.
        activations: activations at the peak of a pass.
        logits: logits, with the loss's intermediates.
    """

    runtime: int
    weights: int
    copy: int
    buffers: int
    directions: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        """The bytes of all parts."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class FullParameterEstimate:
    """The predicted time and memory of a step.

    Attributes:
        device: name of the device.
        model: name of the model.
        work: settings of the step.
        time: seconds by part.
        memory: bytes on the device at the peak, by part.
        usable_bytes: bytes that the device leaves to the process.
        stored_bytes: bytes of the blocks in the host's memory or on disk; 0 if not streamed.
        host_bytes: bytes of the host's memory; None if the blocks are not kept there.
        remedies: options each of which makes the step fit; empty if it fits.
    """

    device: str
    model: str
    work: FullParameterWorkload
    time: FullParameterTime
    memory: FullParameterMemory
    usable_bytes: int
    stored_bytes: int
    host_bytes: int | None
    remedies: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Return whether device and host hold what is kept in them."""
        host = self.host_bytes is None or self.stored_bytes <= self.host_bytes
        return host and self.memory.total <= self.usable_bytes

    @property
    def tokens_per_second(self) -> float:
        """The tokens of the step's examples, each counted once, over its seconds."""
        return self.work.batch * self.work.sequence / self.time.total

    def as_json(self) -> dict[str, Any]:
        """Return the estimate as one JSON object, with an object for each kind of parts."""
        return {
            "device": self.device,
            "model": self.model,
            **asdict(self.work),
            "step_seconds": self.time.total,
            "step_parts_seconds": asdict(self.time),
            "tokens_per_second": self.tokens_per_second,
            "peak_memory_bytes": self.memory.total,
            "peak_memory_parts_bytes": asdict(self.memory),
            "usable_memory_bytes": self.usable_bytes,
            "stored_bytes": self.stored_bytes,
            "fits": self.fits,
            "would_fit": list(self.remedies),
        }


def estimate_full_parameters(
    shape: ModelShape, device: DeviceProfile, work: FullParameterWorkload
) -> FullParameterEstimate:
    """Predict time and memory of a zeroth-order step on all parameters.

    Raises:
        ConfigError: if the sequence is longer than the model's context, or the device has nowhere
            to stream from.
    """
    shape.check_length(work.sequence)
    result = _estimate(shape, device, work)
    if result.fits:
        return result
    fitting = (
        option
        for option, change in _changes(device, work)
        if _estimate(shape, device, replace(work, **change)).fits
    )
    return replace(result, remedies=tuple(fitting))


def _changes(
    device: DeviceProfile, work: FullParameterWorkload
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield options that may make a step fit, and what they change."""
    if work.precision == "fp32":
        yield "--quantization fp16", {"precision": "fp16"}
    if work.keeps_copy:
        yield "--set in-place=true", {"in_place": True}
    for stream in ("host", "disk"):
        if device.has_stream(stream) and work.stream != stream:
            yield f"--set model.stream={stream}", {"stream": stream}
            if work.keeps_copy:
                both = f"--set model.stream={stream} --set in-place=true"
                yield both, {"stream": stream, "in_place": True}


def _estimate(
    shape: ModelShape, device: DeviceProfile, work: FullParameterWorkload
) -> FullParameterEstimate:
    of_a_parameter = MASTER_BYTES if work.keeps_copy else WIDTH[work.precision]
    stored = 0 if work.stream == "off" else shape.block_weights * of_a_parameter
    return FullParameterEstimate(
        device=device.name,
        model=shape.name,
        work=work,
        time=_time(shape, device, work, stored),
        memory=_memory(shape, device, work),
        usable_bytes=device.usable_bytes,
        stored_bytes=stored,
        host_bytes=device.offload_host.bytes if work.stream == "host" else None,
    )


def _time(
    shape: ModelShape, device: DeviceProfile, work: FullParameterWorkload, stored: int
) -> FullParameterTime:
    """Return the seconds of a step; both directions of a link, but not of a disk, are at once."""
    width, bandwidth = WIDTH[work.precision], device.memory.bandwidth
    reads = Workload(
        sequence=work.sequence,
        batch=work.batch,
        quantization=work.precision,
        tiled=not work.published,
    )
    a_pass = base_pass_time(shape, device, reads).total
    if work.published:
        moved = SCORE_TRAFFIC * _score_entries(shape, work) * len(shape.blocks) * width
        a_pass += moved / (bandwidth * device.timing.activation_share)
    parameters = shape.block_weights + shape.other_weights
    moved = DIRECTION_TRAFFIC * parameters * width
    directions = work.queries * moved / (bandwidth * device.timing.bandwidth_share)
    computing = 2 * work.queries * a_pass + directions
    transfers = 0.0
    if work.stream == "host":
        host = device.offload_host
        transfers = stored / min(host.to_device, host.to_host)
    elif work.stream == "disk":
        transfers = 2 * stored / device.read_bandwidth
    return FullParameterTime(
        passes=2 * work.queries * a_pass,
        directions=directions,
        transfers=max(0.0, transfers - computing),
    )


def _memory(
    shape: ModelShape, device: DeviceProfile, work: FullParameterWorkload
) -> FullParameterMemory:
    width = WIDTH[work.precision]
    block = max(sum(linear.weights for linear in block) for block in shape.blocks)
    kept = shape.other_weights + (shape.block_weights if work.stream == "off" else 0)
    buffers = 0
    if work.stream != "off":
        # Beside the copies of blocks that travel, one in the type that is computed with.
        buffers = BUFFERS * block * (MASTER_BYTES if work.keeps_copy else width)
        buffers += block * width if work.keeps_copy else 0
    activations, logits = _alive_in_a_pass(shape, work)
    return FullParameterMemory(
        runtime=device.memory.runtime_bytes,
        weights=kept * width,
        copy=kept * MASTER_BYTES if work.keeps_copy else 0,
        buffers=buffers,
        directions=TEMPORARIES * _largest(shape) * width if work.published else _CHUNK_BYTES,
        activations=activations,
        logits=logits,
    )


def _alive_in_a_pass(shape: ModelShape, work: FullParameterWorkload) -> tuple[int, int]:
    """Return the bytes of activations and of logits at the peak of a pass."""
    width, tokens = WIDTH[work.precision], work.batch * work.sequence
    hidden = tokens * shape.hidden * width
    if work.published:
        # The peak is in a block, or at the loss.
        scores = SCORE_COPIES * _score_entries(shape, work) * width
        in_a_block = round(scores) + HIDDEN_COPIES * hidden
        logits = round(tokens * shape.vocabulary * LOGIT_BYTES[work.precision])
        return (in_a_block, 0) if in_a_block > hidden + logits else (hidden, logits)
    alive = max(
        peak_activation_entries(block, work.batch, work.sequence, work.sequence)
        for block in set(shape.blocks)
    )
    # All passes of a step go through a streamed block together.
    waiting = 0 if work.stream == "off" else 2 * work.queries * hidden
    tile = logit_tile_positions(shape.vocabulary, tokens, True) if shape.vocabulary else 0
    return alive * width + waiting, tile * shape.vocabulary * _LOGITS_ALIVE


def _score_entries(shape: ModelShape, work: FullParameterWorkload) -> int:
    """Return the entries of the attention scores of a block."""
    return work.batch * shape.heads * work.sequence**2


def _largest(shape: ModelShape) -> int:
    """Return the entries of the largest parameter."""
    matrices = (linear.weights for block in shape.blocks for linear in block)
    return max(shape.vocabulary * shape.hidden, *matrices)
