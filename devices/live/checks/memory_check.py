"""The free memory of a device, and the expected peak memory of a step."""

from dataclasses import replace

from samara.client.training.execution import largest_micro_batch
from samara.devices.hardware.memory_footprint import (
    MemoryFootprint,
    memory_footprint,
    readout_footprint,
)
from samara.devices.hardware.profile import DeviceProfile, shipped_devices
from samara.devices.hardware.run_step import label_count, shape_of, workload_of
from samara.devices.jetson import telemetry
from samara.shared.machine.free_memory import free_memory
from samara.shared.settings.config import RunConfig


def free_on(device: str) -> int:
    """Return the free bytes of a torch device; a Jetson's GPU shares the CPU's memory."""
    free = free_memory()
    if not device.startswith("cuda") or telemetry.is_jetson():
        return free
    import torch

    return min(free, torch.cuda.mem_get_info(device)[0]) if torch.cuda.is_available() else free


def default_profile(device: str) -> DeviceProfile:
    """Return the shipped profile that stands in for a machine without a profile.

    It has the largest `runtime_bytes` of the profiles with the same kind of processor.
    """
    kind = "gpu" if device.startswith(("cuda", "mps")) else "cpu"
    profiles = [each for each in shipped_devices() if each.compute.processor == kind]
    return max(profiles, key=lambda each: each.memory.runtime_bytes)


def expected_footprint(config: RunConfig, profile: DeviceProfile) -> MemoryFootprint:
    """Return the expected peak memory of a step and, with a readout, of its first pass.

    The server decides some settings, such as queries, examples and adapters. Until the client has
    connected, `config` has the defaults of these settings. The data are not read: a readout is
    assumed to keep the representations of as many examples as a step may have. A client with fewer
    examples needs less memory.

    Args:
        config: run configuration with the device's settings.
        profile: profile of the device.

    Raises:
        SamaraError: if the model's shape cannot be read, for example before its download, or a
            readout's task cannot be read.
    """
    shape = shape_of(config)
    work = workload_of(config, shape)
    if not config.adapter.inner_layers:
        return readout_footprint(shape, profile, work, label_count(config.task), config.batch)

    def footprint(examples: int) -> MemoryFootprint:
        return memory_footprint(shape, profile, replace(work, batch=examples))

    is_streamed = work.stream != "off"
    examples = largest_micro_batch(
        config, lambda count: footprint(count).of_pass, work.batch, is_streamed
    )
    return footprint(max(1, examples))
