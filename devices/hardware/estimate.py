"""The predicted cost of a model's step on a device, and options with which the step fits."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from samara.devices.hardware.memory_footprint import (
    MemoryFootprint,
    memory_footprint,
    readout_footprint,
)
from samara.devices.hardware.model_shape import ModelShape
from samara.devices.hardware.profile import DeviceProfile
from samara.devices.hardware.roofline import (
    StepTime,
    Workload,
    base_pass_time,
    readout_step_time,
    step_time,
)

UNIT = 256
"""Number of examples per read of a streamed model, in the pass before a readout's first step.

It is the number in `samara.client.forward.readout`.
"""
_SMALLER = {"fp32": ("fp16", "int8", "nf4"), "fp16": ("int8", "nf4"), "int8": ("nf4",), "nf4": ()}


@dataclass(frozen=True)
class StepEstimate:
    """The predicted time, memory and energy of a step.

    Attributes:
        device: name of the device.
        mode: power mode of the device; empty if it has none.
        model: name of the model.
        work: settings of the step.
        time: seconds by part.
        memory: bytes at the peak by part.
        usable_bytes: bytes of memory available to the process.
        energy_joules: upper bound of the step's energy; None if the power draw is unknown.
        remedies: options, each of which makes the step fit, in the order in which to try them;
            empty if the step fits already.
        first_pass: seconds of the pass that computes a readout's representations before the first
            step, by part; None with adapters inside the model.
    """

    device: str
    mode: str
    model: str
    work: Workload
    time: StepTime
    memory: MemoryFootprint
    usable_bytes: int
    energy_joules: float | None
    remedies: tuple[str, ...]
    first_pass: StepTime | None = None

    @property
    def fits(self) -> bool:
        """Return whether the peak memory is at most the usable memory."""
        return self.memory.total <= self.usable_bytes

    def as_json(self) -> dict[str, Any]:
        """Return the estimate as a JSON object, with a nested object for time and for memory."""
        first = self.first_pass
        return {
            "device": self.device,
            "power_mode": self.mode,
            "model": self.model,
            **asdict(self.work),
            "step_seconds": self.time.total,
            "step_parts_seconds": asdict(self.time),
            "peak_memory_bytes": self.memory.total,
            "peak_memory_parts_bytes": asdict(self.memory),
            "usable_memory_bytes": self.usable_bytes,
            "energy_joules": self.energy_joules,
            "fits": self.fits,
            "would_fit": list(self.remedies),
        } | ({} if first is None else {"first_pass_seconds": first.total})


def estimate_step(shape: ModelShape, device: DeviceProfile, work: Workload) -> StepEstimate:
    """Predict time, memory and energy of a step.

    Raises:
        ConfigError: if the sequence is longer than the model's context.
        ModelError: if the model has fewer blocks than `work.top`.
    """
    shape.check_length(work.sequence)
    time = step_time(shape, device, work)
    memory = memory_footprint(shape, device, work)
    fits = memory.total <= device.usable_bytes
    return StepEstimate(
        device=device.name,
        mode=device.mode,
        model=shape.name,
        work=work,
        time=time,
        memory=memory,
        usable_bytes=device.usable_bytes,
        energy_joules=None if device.watts is None else time.total * device.watts,
        remedies=() if fits else _find_remedies(shape, device, work),
    )


def estimate_readout(
    shape: ModelShape, device: DeviceProfile, work: Workload, labels: int, examples: int
) -> StepEstimate:
    """Predict time, memory and energy of a readout's step, and of the pass before the first step.

    Args:
        shape: shape of the model.
        device: device profile.
        work: settings of the step; its batch is the number of examples in a forward pass.
        labels: number of labels.
        examples: number of examples of the step; their representations are kept.

    Raises:
        ConfigError: as in `estimate_step`.
    """
    alone = replace(work, queries=1, grouping="sequential", differences="forward", top=1, rank=1)
    passing = estimate_step(shape, device, alone)
    time = readout_step_time(shape, device, work, labels - 1, examples)
    memory = readout_footprint(shape, device, work, labels, examples)
    # A streamed model is read once per `UNIT` examples.
    units = -(-examples // UNIT) if work.stream != "off" else 0
    in_memory = base_pass_time(shape, device, replace(work, stream="off"))
    first = in_memory * -(-examples // work.batch)
    if units:
        once = base_pass_time(shape, device, replace(work, batch=min(UNIT, examples)))
        first += StepTime(storage=once.storage * units)
    return replace(
        passing,
        work=work,
        time=time,
        memory=memory,
        energy_joules=None if device.watts is None else time.total * device.watts,
        first_pass=first,
    )


_OPTIONS = {
    "quantization": "--quantization {}",
    "batch": "--batch {}",
    "stream": "--set model.stream={}",
    "grouping": "--set grouping={}",
}
"""Command-line options of `samara device estimate` that change a step, by attribute of `Workload`.
"""


def _find_remedies(shape: ModelShape, device: DeviceProfile, work: Workload) -> tuple[str, ...]:
    """Return single options that make the step fit; if there are none, combinations of options."""

    def fitting(changes: Iterable[dict[str, Any]]) -> tuple[str, ...]:
        return tuple(
            " ".join(_OPTIONS[key].format(value) for key, value in change.items())
            for change in changes
            if memory_footprint(shape, device, replace(work, **change)).total <= device.usable_bytes
        )

    smaller = [{"quantization": kind} for kind in _SMALLER[work.quantization]]
    batches = [{"batch": 2**power} for power in reversed(range(work.batch.bit_length()))]
    streamed = [
        {"stream": stream}
        for stream in ("host", "disk")
        if work.stream == "off" and device.has_stream(stream)
    ]
    alone = [{"grouping": "sequential"}, *batches, *smaller, *streamed]
    least = {"grouping": "sequential", "batch": 1}
    return fitting(alone) or fitting([least, *({**least, **change} for change in smaller)])
