"""Memory that is free on a device, and memory that a step is expected to take."""

import psutil

from client.streaming.loading import choose_tier
from client.training.model_runtime import EVALUATION_MICRO_BATCH
from devices.hardware.estimate import UNIT
from devices.hardware.memory_footprint import (
    MemoryFootprint,
    memory_footprint,
    readout_footprint,
)
from devices.hardware.model_shape import model_shape
from devices.hardware.profile import DeviceProfile, shipped_devices
from devices.hardware.roofline import Grouping, Quantization, Workload
from devices.jetson import telemetry
from shared.config import RunConfig
from shared.model.model_folder import find_embedded_model
from shared.sections import EMBEDDED_MODEL
from shared.tasks.catalog import load_task
from shared.tasks.kinds import ChoiceTask, ClassificationTask

_GROUPINGS: dict[str, Grouping] = {
    "sequential": "sequential",
    "inner": "inner",
    "outer": "outer",
    "both": "both",
    "auto": "sequential",  # the least of them: auto takes what fits
}


def free_memory(device: str) -> int:
    """Return the free bytes for a torch device; a Jetson's GPU shares the CPU's memory."""
    free: int = psutil.virtual_memory().available
    if not device.startswith("cuda") or telemetry.is_jetson():
        return free
    import torch

    return min(free, torch.cuda.mem_get_info(device)[0]) if torch.cuda.is_available() else free


def default_profile(device: str) -> DeviceProfile:
    """Return the shipped profile that is used for a machine without a profile of its own.

    It is the profile with the same kind of processor whose libraries take most memory.
    """
    kind = "gpu" if device.startswith(("cuda", "mps")) else "cpu"
    profiles = [each for each in shipped_devices() if each.compute.processor == kind]
    return max(profiles, key=lambda each: each.memory.runtime_bytes)


def expected_footprint(config: RunConfig, profile: DeviceProfile) -> MemoryFootprint:
    """Return the expected peak memory of a step and, with a readout alone, of the pass before it.

    The settings that the server decides (queries, examples, adapters) are taken from `config`,
    which holds their defaults as long as the client has not connected. The data are not read: a
    readout is expected to keep as many examples as a step may have, and a client with fewer needs
    less.

    Args:
        config: run configuration with the device's settings.
        profile: profile of the device.

    Raises:
        SamaraError: if the model's shape cannot be read, for example before its download, or the
            task of a readout.
    """
    model = config.model
    shape = model_shape(str(find_embedded_model()) if model.path == EMBEDDED_MODEL else model.path)
    inner = config.adapter.inner_layers
    work = Workload(
        sequence=min(model.max_length, shape.context or model.max_length),
        batch=examples_in_pass(config),
        queries=config.queries,
        grouping=_GROUPINGS[config.grouping],
        differences=config.differences,
        curvature=config.learning_rate == "auto",
        quantization=_stored(config),
        top=int(inner.removeprefix("top:")) if inner.startswith("top:") else 0,
        rank=config.adapter.rank,
        stream="disk" if choose_tier(model) == "disk" else "off",
    )
    if inner:
        return memory_footprint(shape, profile, work)
    return readout_footprint(shape, profile, work, _label_count(config.task), config.batch)


def examples_in_pass(config: RunConfig) -> int:
    """Return the most examples of a forward pass."""
    if config.adapter.inner_layers:
        return min(config.batch, config.micro_batch or config.batch)
    return min(config.batch, config.micro_batch or EVALUATION_MICRO_BATCH, UNIT)


def _label_count(task: str) -> int:
    """Return the number of labels of a task; 1 where a readout is not possible.

    Raises:
        SamaraError: if the task cannot be read.
    """
    match load_task(task):
        case ClassificationTask(words=labels) | ChoiceTask(candidates=tuple() as labels):
            return len(labels)
        case _:
            return 1


def _stored(config: RunConfig) -> Quantization:
    """Return the storage type of the weights in the blocks, as the time model names it."""
    if config.model.quantization != "none":
        return config.model.quantization
    return "fp32" if config.model.dtype == "float32" else "fp16"
