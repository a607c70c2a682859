"""The predicted time of a P-RGE step: a roofline per layer, from model shape and device profile.

A matrix product takes max(bytes moved / bandwidth, operations / rate) seconds. A forward pass also
takes time to dequantize weights, to move activations between products, to compute attention, and to
launch operations. docs/guides/devices.md explains each parameter. docs/measurements/devices.md
compares predicted with measured times.
"""

from collections import Counter
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

from samara.devices.hardware.model_shape import Linear, ModelShape
from samara.devices.hardware.profile import DeviceProfile, Stream
from samara.shared.errors import ConfigError, ModelError
from samara.shared.protocol.directions import Differences

Grouping = Literal["sequential", "inner", "outer", "both"]
Quantization = Literal["fp32", "fp16", "int8", "nf4"]

TRAFFIC = 6
"""Number of reads and writes of an entry between two matrix products.

They are counted in transformers' Llama block without fusion, at 2 bytes per entry: two norms in
float32 (72 bytes per hidden feature), rotary embedding (24 per query and key feature), residuals
(12), the gate (10 per intermediate feature), and each product's input and output. The total is 5.7
times the inputs and outputs of the linear layers for TinyLlama-1.1B, and 5.9 times for Llama2-7B.
"""
LOGIT_TRAFFIC = 5
"""Number of reads and writes of a 4-byte logit: product, cast, max, sum, gather."""
BLOCK_LAUNCHES = 28
"""Number of a block's launched operations besides products.

Norms have 12, rotary embeddings 10, residuals 2, the gate 2, and attention 2.
"""
ADAPTER_LAUNCHES = 5
"""Number of operations of an adapted layer in a pass: A·x, three for B ± ε·z, one batched product.
"""
LOGIT_TILE_BYTES = 32 * 2**20
"""Bytes of the logits held at a time, as in `samara.shared.model.head`."""
_STORED = {"fp32": 4.0, "fp16": 2.0, "int8": 1.0, "nf4": 4.5 / 8}
"""Bytes per weight. NF4 has a float32 maximum per 64 weights; INT8's scales are negligible."""
_WIDTH = {"fp32": 4, "fp16": 2}
_DEQUANTIZING_LAUNCHES = {"fp32": 0, "fp16": 0, "int8": 2, "nf4": 1}


@dataclass(frozen=True)
class Workload:
    """The settings of a step that decide its time and memory.

    Attributes:
        sequence: S, tokens of an example.
        batch: B, examples of a step.
        queries: q, directions of a step.
        grouping: assignment of perturbations to forward passes.
        differences: central or forward differences of the losses, or components. With components,
            the estimate of a step is one product per direction. In measurements with 32 to 128
            directions and 40 rounds, the minimum in the span of the directions took 28 to 36
            products.
        curvature: whether the step also measures curvature, which needs the losses on both sides
            and at the unperturbed adapter.
        quantization: storage type of the weights in the blocks.
        top: number of top blocks that have adapters; 0 means all blocks.
        rank: rank of the adapters.
        supervised: number of positions per example whose logits are needed; 0 means all positions.
        tiled: whether logits are computed in tiles of positions.
        stream: storage of the blocks between uses: the device's memory (``off``), its host's
            memory, or disk.
    """

    sequence: int = 64
    batch: int = 1
    queries: int = 1
    grouping: Grouping = "both"
    differences: Differences = "central"
    curvature: bool = False
    quantization: Quantization = "fp16"
    top: int = 0
    rank: int = 16
    supervised: int = 0
    tiled: bool = True
    stream: Stream = "off"

    def __post_init__(self) -> None:
        for name in ("sequence", "batch", "queries", "rank"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; set it to at least 1")
        if not 0 <= self.supervised <= self.sequence:
            raise ConfigError(
                f"supervised is {self.supervised}; set it to a number from 0 to {self.sequence}. "
                "0 means all tokens of the sequence"
            )

    @property
    def perturbations_per_pass(self) -> int:
        """The number of perturbations that share a forward pass."""
        q = self.queries
        sides = self._sides
        return {"sequential": 1, "inner": sides, "outer": q, "both": sides * q}[self.grouping]

    @property
    def rows_per_pass(self) -> int:
        """The maximum number of rows of a forward pass: examples times perturbations."""
        return self.batch * self.perturbations_per_pass

    @property
    def passes(self) -> tuple[tuple[int, int], ...]:
        """The forward passes of a step, as pairs of rows and number of passes.

        The unperturbed model, if needed, has a separate pass.
        """
        perturbed = self.rows_per_pass, self._sides * self.queries // self.perturbations_per_pass
        centre = self.differences == "forward" or self.curvature
        return (perturbed, (self.batch, 1)) if centre else (perturbed,)

    @property
    def _sides(self) -> int:
        """The number of perturbations per direction: 1 or 2."""
        return 2 if self.differences == "central" or self.curvature else 1

    @property
    def query_groups(self) -> int:
        """The number of groups of directions that are drawn and applied together."""
        return 1 if self.grouping in ("outer", "both") else self.queries

    def first_adapted(self, shape: ModelShape) -> int:
        """Return the index of the lowest adapted block.

        Raises:
            ModelError: if the model has fewer blocks than `top`.
        """
        blocks = len(shape.blocks)
        if not 0 <= self.top <= blocks:
            raise ModelError(f"{shape.name}: has {blocks} blocks, so top {self.top} is too many")
        return blocks - (self.top or blocks)

    def positions(self, shape: ModelShape) -> int:
        """Return the number of positions per example whose logits are needed."""
        everything = self.supervised == 0 or shape.vocabulary == 0
        return self.sequence if everything else self.supervised


@dataclass(frozen=True)
class StepTime:
    """The duration of a step in seconds, by part; `total` is the sum of the parts.

    Attributes:
        weights: matrix products of the blocks that memory bandwidth limits.
        products: matrix products of the blocks that compute limits.
        dequantization: dequantizing the blocks' weights.
        activations: reads and writes of activations between products.
        attention: attention scores and weighted sums.
        head: logits and losses at the supervised positions.
        launches: launching operations, and the host's work for each pass.
        adapters: drawing directions, and perturbing and updating the adapters.
        storage: time in which the device waits for blocks from the host's memory or from disk.
    """

    weights: float = 0.0
    products: float = 0.0
    dequantization: float = 0.0
    activations: float = 0.0
    attention: float = 0.0
    head: float = 0.0
    launches: float = 0.0
    adapters: float = 0.0
    storage: float = 0.0

    @property
    def total(self) -> float:
        """The seconds of the whole step."""
        seconds: float = sum(getattr(self, field.name) for field in fields(self))
        return seconds

    def __add__(self, other: "StepTime") -> "StepTime":
        return StepTime(
            *(getattr(self, field.name) + getattr(other, field.name) for field in fields(self))
        )

    def __mul__(self, times: int) -> "StepTime":
        return StepTime(*(getattr(self, field.name) * times for field in fields(self)))


def compute_dtype(device: DeviceProfile, quantization: Quantization) -> Literal["fp32", "fp16"]:
    """Return the type in which weights are multiplied."""
    if quantization == "int8" or quantization == "nf4":
        return device.compute.weights
    return quantization


def stored_bytes(quantization: Quantization) -> float:
    """Return the bytes of a stored weight in the blocks."""
    return _STORED[quantization]


def compute_bytes(device: DeviceProfile, quantization: Quantization) -> int:
    """Return the bytes of a number in the type in which weights are multiplied."""
    return _WIDTH[compute_dtype(device, quantization)]


def step_time(shape: ModelShape, device: DeviceProfile, work: Workload) -> StepTime:
    """Predict the time of a step.

    Blocks below the lowest adapted block run once per example. All other blocks run once per row.
    In the last block, the layers after attention run only at supervised positions.

    Streamed blocks are read once per step, while other blocks compute. All passes of a step go
    through a block while it is in memory. The embedding and the head stay in memory.

    Raises:
        ModelError: if the model has fewer blocks than `work.top`.
        ConfigError: if the profile lacks the bandwidth of the place that blocks are streamed from.
    """
    first = work.first_adapted(shape)
    machine = _AchievedRates.of(device, work)
    step = StepTime()
    last = len(shape.blocks) - 1
    alike = Counter(
        (block, index >= first, index == last) for index, block in enumerate(shape.blocks)
    )
    for (block, adapted, is_last), count in alike.items():
        read = work.positions(shape) if is_last else work.sequence
        for rows, passes in work.passes if adapted else ((work.batch, 1),):
            pass_time = machine.block(block, rows, work.sequence, read, adapted)
            pass_time += StepTime(attention=machine.attention(shape.attention, rows, work.sequence))
            step += pass_time * (passes * count)
    if work.stream != "off":
        step += StepTime(storage=max(0.0, _reading(shape, device, work) - step.total))
    for rows, passes in work.passes if shape.vocabulary else ():
        step += machine.head(shape, rows * work.positions(shape), work.tiled) * passes
    layers = sum(linear.adapted for block in shape.blocks[first:] for linear in block)
    return step + StepTime(
        launches=sum(passes for _, passes in work.passes) * device.timing.pass_seconds,
        adapters=layers * work.query_groups * device.timing.adapter_seconds,
    )


def base_pass_time(shape: ModelShape, device: DeviceProfile, work: Workload) -> StepTime:
    """Predict the time of running the model once over a batch, without adapters.

    Streamed blocks are read once.

    Raises:
        ConfigError: if the profile lacks the bandwidth of the place that blocks are streamed from.
    """
    machine = _AchievedRates.of(device, work)
    time = StepTime()
    last = len(shape.blocks) - 1
    for index, block in enumerate(shape.blocks):
        read = work.positions(shape) if index == last else work.sequence
        time += machine.block(block, work.batch, work.sequence, read, False)
        time += StepTime(attention=machine.attention(shape.attention, work.batch, work.sequence))
    if work.stream != "off":
        time += StepTime(storage=max(0.0, _reading(shape, device, work) - time.total))
    if shape.vocabulary:
        time += machine.head(shape, work.batch * work.positions(shape), work.tiled)
    return time + StepTime(launches=device.timing.pass_seconds)


def _reading(shape: ModelShape, device: DeviceProfile, work: Workload) -> float:
    """Return the seconds needed to read all blocks from their storage."""
    rate = device.offload_host.to_device if work.stream == "host" else device.read_bandwidth
    return shape.block_weights * stored_bytes(work.quantization) / rate


def readout_step_time(
    shape: ModelShape, device: DeviceProfile, work: Workload, rows: int, examples: int
) -> StepTime:
    """Predict the time of a step on cached representations; the step is a single product.

    Args:
        shape: shape of the model.
        device: device profile.
        work: settings of the step.
        rows: number of rows of the readout, labels − 1.
        examples: number of examples of the step.
    """
    losses = sum(rows_of_pass * passes for rows_of_pass, passes in work.passes) // work.batch
    machine = _AchievedRates.of(device, work)
    return machine.product(shape.hidden, rows * losses, examples) + StepTime(
        launches=device.timing.pass_seconds, adapters=device.timing.adapter_seconds
    )


class _AchievedRates(NamedTuple):
    """The rates that a device reaches for one quantization."""

    bandwidth: float
    rate: float
    full_rows: float
    activation_bandwidth: float
    on_chip: int
    width: int
    dequantize_bytes: float
    dequantize_seconds: float
    dequantize_launches: int
    launch: float

    @classmethod
    def of(cls, device: DeviceProfile, work: Workload) -> "_AchievedRates":
        timing = device.timing
        quantization = work.quantization
        kind = compute_dtype(device, quantization)
        width = _WIDTH[kind]
        stored = _STORED[quantization]
        # INT8 weights are scaled in float32 and then narrowed.
        moved = {"nf4": stored + width, "int8": stored + (4 if width == 4 else 10)}
        operations = {"nf4": timing.nf4_operations, "int8": timing.int8_operations}
        return cls(
            bandwidth=device.memory.bandwidth * timing.bandwidth_share,
            rate=getattr(device.compute, kind) * timing.share_of_rate(kind),
            full_rows=timing.full_rows,
            activation_bandwidth=device.memory.bandwidth * timing.activation_share,
            on_chip=device.memory.on_chip_bytes,
            width=width,
            dequantize_bytes=moved.get(quantization, 0.0),
            dequantize_seconds=operations.get(quantization, 0.0) / device.compute.fp32,
            dequantize_launches=_DEQUANTIZING_LAUNCHES[quantization],
            launch=timing.launch_seconds,
        )

    def block(
        self, block: tuple[Linear, ...], rows: int, sequence: int, read: int, adapted: bool
    ) -> StepTime:
        """Return the time of one block that computes `read` positions of a row after attention."""
        time = StepTime(launches=BLOCK_LAUNCHES * self.launch)
        entries = 0
        for linear in block:
            tokens = rows * (read if linear.positionwise else sequence)
            entries += tokens * (linear.inputs + linear.outputs)
            launches = (
                1 + self.dequantize_launches + ADAPTER_LAUNCHES * (adapted and linear.adapted)
            )
            time += self.product(linear.inputs, linear.outputs, tokens)
            time += StepTime(
                dequantization=max(
                    linear.weights * self.dequantize_bytes / self.bandwidth,
                    linear.weights * self.dequantize_seconds,
                ),
                launches=launches * self.launch,
            )
        alive = max(peak_activation_entries(block, rows, sequence, read), 1) * self.width
        spilled = max(0.0, 1 - self.on_chip / alive)
        moved = (TRAFFIC - 1) * entries * self.width * spilled
        return time + StepTime(activations=moved / self.activation_bandwidth)

    def product(self, inputs: int, outputs: int, tokens: int) -> StepTime:
        """Return the time of a matrix product: the maximum of memory time and compute time."""
        entries = inputs * outputs + tokens * (inputs + outputs)
        memory = entries * self.width / self.bandwidth
        processor = 2 * inputs * outputs * max(tokens, self.full_rows) / self.rate
        return StepTime(weights=memory) if memory > processor else StepTime(products=processor)

    def attention(self, features: int, rows: int, sequence: int) -> float:
        """Return the seconds of attention scores and weighted sums.

        They are two products of S × S × features per row.
        """
        return 4 * rows * sequence**2 * features / self.rate

    def head(self, shape: ModelShape, positions: int, tiled: bool) -> StepTime:
        """Return the time of the logits at a number of positions, and of their log-sums.

        The logits are computed in tiles of positions if `tiled` is set.
        """
        tile = logit_tile_positions(shape.vocabulary, positions, tiled)
        seconds = 0.0
        for tokens in range(positions, 0, -tile):
            seconds += self.product(shape.hidden, shape.vocabulary, min(tokens, tile)).total
        moved = LOGIT_TRAFFIC * 4 * positions * shape.vocabulary
        launches = 6 * -(-positions // tile)
        return StepTime(
            head=seconds + moved / self.activation_bandwidth, launches=launches * self.launch
        )


def logit_tile_positions(vocabulary: int, positions: int, tiled: bool) -> int:
    """Return the number of positions whose logits are in memory at once."""
    return min(positions, max(1, LOGIT_TILE_BYTES // (4 * vocabulary))) if tiled else positions


def peak_activation_entries(block: tuple[Linear, ...], rows: int, sequence: int, read: int) -> int:
    """Return the peak number of activation entries in memory within a block.

    The peak consists of the residual stream and the larger of two sets: queries, keys, values and
    attention output; or the outputs of the widest layers after attention (gate, up and their
    product).
    """
    before = [linear for linear in block if not linear.positionwise]
    after = [linear for linear in block if linear.positionwise]
    hidden = max((linear.inputs for linear in before), default=0)
    attention = sum(linear.outputs for linear in before) + hidden
    widest = max((linear.outputs for linear in after), default=0)
    wide = sum(linear.outputs for linear in after if linear.outputs == widest) + widest
    return rows * (hidden * sequence + max(attention * sequence, wide * read))
