"""What a step of a model costs on a device, whether it fits, and what would make it fit."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from devices.hardware.memory_footprint import MemoryFootprint, memory_footprint
from devices.hardware.model_shape import ModelShape
from devices.hardware.profile import DeviceProfile
from devices.hardware.roofline import StepTime, Workload, step_time
from shared.errors import ConfigError

_SMALLER = {"fp32": ("fp16", "int8", "nf4"), "fp16": ("int8", "nf4"), "int8": ("nf4",), "nf4": ()}


@dataclass(frozen=True)
class StepEstimate:
    """A predicted step.

    Attributes:
        device: its name.
        mode: the device's power mode; empty if it has none.
        model: its name.
        work: the step.
        time: seconds by what they go into.
        memory: bytes at the peak, by part.
        usable_bytes: what the device leaves to the process.
        energy_joules: at most; None if nobody knows what the device draws.
        remedies: options each of which makes it fit, if it does not; the mildest first.
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

    @property
    def fits(self) -> bool:
        """Whether the peak stays inside what is usable."""
        return self.memory.total <= self.usable_bytes

    def as_json(self) -> dict[str, Any]:
        """One flat object with the parts as objects in it."""
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
        }


def estimate_step(shape: ModelShape, device: DeviceProfile, work: Workload) -> StepEstimate:
    """Predict time, memory and energy of a step.

    Raises:
        ConfigError: if the sequence is longer than the model's context.
        ModelError: if the model has no such blocks to adapt.
    """
    if shape.context is not None and work.sequence > shape.context:
        raise ConfigError(
            f"{shape.name}: reads at most {shape.context} tokens, and the sequence has "
            f"{work.sequence}; shorten it"
        )
    time, memory = step_time(shape, device, work), memory_footprint(shape, device, work)
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


def _find_remedies(shape: ModelShape, device: DeviceProfile, work: Workload) -> tuple[str, ...]:
    """Options that make it fit: each alone if there are such, otherwise all of them together."""

    def fitting(changes: Iterable[dict[str, Any]]) -> tuple[str, ...]:
        return tuple(
            " ".join(f"--{key} {value}" for key, value in change.items())
            for change in changes
            if memory_footprint(shape, device, replace(work, **change)).total <= device.usable_bytes
        )

    smaller = [{"quantization": kind} for kind in _SMALLER[work.quantization]]
    batches = [{"batch": 2**power} for power in reversed(range(work.batch.bit_length()))]
    streamed = [{"stream": "disk"}] if work.stream == "off" and device.storage else []
    alone = [{"mode": "sequential"}, *batches, *smaller, *streamed]
    least = {"mode": "sequential", "batch": 1}
    return fitting(alone) or fitting([least, *({**least, **change} for change in smaller)])
