"""The predicted cost of a zeroth-order step on all parameters, in memory or streamed.

A step of q directions takes 2·q forward passes. For each direction, every parameter changes four
times: three times when it is perturbed and restored, and once when it is updated (MeZO, algorithm
1). With streaming, each block travels to the accelerator and back once in a step, while the
accelerator computes with other blocks (ZO2, sections 5.2 and 5.4). docs/measurements/devices.md
compares published figures with the predictions.
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
"""Bytes of a weight in the compute type."""
MASTER_BYTES = 4
"""Bytes of a parameter in the float32 copy, from which the perturbed weights are computed."""
BUFFERS = 3
"""Number of streamed blocks on the accelerator: one arriving, one computing, one leaving."""
DIRECTION_TRAFFIC = 42
"""Fitted number of reads and writes of a parameter per direction, in the weights' type.

A direction changes every parameter four times.
"""
SCORE_TRAFFIC = 12
"""Fitted number of reads and writes of an attention score per pass.

It is close to the count for transformers' eager attention: product, scale, mask, maximum, softmax,
dropout, product.
"""
TEMPORARIES = 3
"""Number of temporary tensors of a parameter's size while the published programs perturb it.

The tensors are z and two products.
"""
SCORE_COPIES = 2.5
"""Fitted number of copies of a block's attention scores in memory at the published programs' peak.
"""
LOGIT_BYTES: dict[Precision, float] = {"fp32": 26.0, "fp16": 20.0}
"""Bytes per logit at the peak of the published programs, including intermediates of the loss.

The FP32 value is fitted. The FP16 value is set by hand.
"""
HIDDEN_COPIES = 8
"""Fitted number of hidden states in memory beside the published programs' attention scores."""
_CHUNK_BYTES = 2**24 * (2 + 4 + 4)
"""Bytes of one part of a direction and of its intermediates; only one part is in memory at a time.

`samara.client.spaces.space` sets the size of a part.
"""
_LOGITS_ALIVE = 2 * 4
"""Bytes per logit in float32, including an intermediate of the loss."""


@dataclass(frozen=True)
class FullParameterWorkload:
    """The settings of a step that decide its time and memory.

    Attributes:
        sequence: tokens of an example.
        batch: examples of a step.
        queries: q, directions of a step.
        precision: type that the model computes with.
        stream: storage of the blocks between uses.
        in_place: whether the parameters themselves are perturbed; otherwise the perturbed weights
            are computed from a float32 copy.
        published: whether the step is computed as in the published programs of MeZO and ZO2: in
            place, with all attention scores and logits in memory, and with directions drawn one
            parameter at a time.
        autocast: whether passes compute in half precision while the parameters have `precision`, as
            in automatic mixed precision. The estimate does not count the seconds of the casts, and
            its memory ignores autocast.
        stored_width: bytes of a parameter of a streamed block between uses; 0 for the width on the
            device.
    """

    sequence: int = 64
    batch: int = 1
    queries: int = 1
    precision: Precision = "fp16"
    stream: Stream = "off"
    in_place: bool = False
    published: bool = False
    autocast: bool = False
    stored_width: int = 0

    @property
    def keeps_copy(self) -> bool:
        """Return whether a float32 copy of the parameters is kept."""
        return not (self.in_place or self.published)


@dataclass(frozen=True)
class FullParameterTime:
    """The duration of a step in seconds, by part; `total` is the sum of the parts.

    Attributes:
        passes: forward passes.
        directions: drawing and applying directions.
        transfers: time in which the accelerator waits for streamed blocks.
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
    """The peak memory of a step in bytes, by part; `total` is the sum of the parts.

    Attributes:
        runtime: interpreter, libraries and device contexts.
        weights: weights in the compute type; with streaming, only the weights outside the blocks.
        copy: float32 copy of the parameters; with streaming, only of the parameters outside the
            blocks.
        buffers: buffers of streamed blocks.
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
        memory: peak bytes on the device by part.
        usable_bytes: bytes of memory available to the process.
        stored_bytes: bytes of the blocks in the host's memory or on disk; 0 if not streamed.
        host_bytes: size of the host's memory in bytes; None if no blocks are stored there.
        remedies: options, each of which makes the step fit; empty if the step fits already.
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
        """Return whether the data fit on the device and on the host."""
        host = self.host_bytes is None or self.stored_bytes <= self.host_bytes
        return host and self.memory.total <= self.usable_bytes

    @property
    def tokens_per_second(self) -> float:
        """The number of tokens in the step's examples, divided by the seconds of the step."""
        return self.work.batch * self.work.sequence / self.time.total

    def as_json(self) -> dict[str, Any]:
        """Return the estimate as a JSON object, with a nested object for time and for memory."""
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
        ConfigError: if the sequence is longer than the model's context, or if the profile lacks the
            bandwidth of the blocks' storage.
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
    """Yield options that may make a step fit, each with the changed attributes of the workload."""
    if work.precision == "fp32":
        # By default, a step in fp16 keeps a copy of the parameters in float32.
        in_place = " --set in-place=true" if work.in_place else ""
        yield f"--quantization fp16{in_place}", {"precision": "fp16"}
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
    on_device = MASTER_BYTES if work.keeps_copy else WIDTH[work.precision]
    of_a_parameter = work.stored_width or on_device
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
    """Return the seconds of a step by part.

    Transfers in both directions overlap on a link, but not on a disk.
    """
    width = WIDTH[work.precision]
    computes: Precision = "fp16" if work.autocast else work.precision
    bandwidth = device.memory.bandwidth
    reads = Workload(
        sequence=work.sequence,
        batch=work.batch,
        quantization=computes,
        tiled=not work.published,
    )
    a_pass = base_pass_time(shape, device, reads).total
    if work.published:
        moved = SCORE_TRAFFIC * _score_entries(shape, work) * len(shape.blocks) * WIDTH[computes]
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
        # Beside the copies of streamed blocks, one block is kept in the compute type.
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
    width = WIDTH[work.precision]
    tokens = work.batch * work.sequence
    hidden = tokens * shape.hidden * width
    if work.published:
        # The peak occurs in a block or at the loss.
        scores = SCORE_COPIES * _score_entries(shape, work) * width
        in_a_block = round(scores) + HIDDEN_COPIES * hidden
        logits = round(tokens * shape.vocabulary * LOGIT_BYTES[work.precision])
        return (in_a_block, 0) if in_a_block > hidden + logits else (hidden, logits)
    alive = max(
        peak_activation_entries(block, work.batch, work.sequence, work.sequence)
        for block in set(shape.blocks)
    )
    # All passes of a step go through a streamed block while it is in memory.
    waiting = 0 if work.stream == "off" else 2 * work.queries * hidden
    tile = logit_tile_positions(shape.vocabulary, tokens, True) if shape.vocabulary else 0
    return alive * width + waiting, tile * shape.vocabulary * _LOGITS_ALIVE


def _score_entries(shape: ModelShape, work: FullParameterWorkload) -> int:
    """Return the number of attention scores of a block."""
    return work.batch * shape.heads * work.sequence**2


def _largest(shape: ModelShape) -> int:
    """Return the number of entries of the largest parameter."""
    matrices = (linear.weights for block in shape.blocks for linear in block)
    return max(shape.vocabulary * shape.hidden, *matrices)
