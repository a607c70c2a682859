"""Memory that is free on a device, and memory that a step is expected to take."""

from samara.devices.hardware.memory_footprint import (
    MemoryFootprint,
    memory_footprint,
    readout_footprint,
)
from samara.devices.hardware.profile import DeviceProfile, shipped_devices
from samara.devices.hardware.run_step import label_count, shape_of, workload_of
from samara.devices.jetson import telemetry
from samara.shared.config import RunConfig
from samara.shared.free_memory import free_memory


def free_on(device: str) -> int:
    """Return the free bytes for a torch device; a Jetson's GPU shares the CPU's memory."""
    free = free_memory()
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
    shape = shape_of(config)
    work = workload_of(config, shape)
    if config.adapter.inner_layers:
        return memory_footprint(shape, profile, work)
    return readout_footprint(shape, profile, work, label_count(config.task), config.batch)
