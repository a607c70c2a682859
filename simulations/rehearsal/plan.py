"""The plan of a rehearsal: what each client is held to, and what the formula predicts for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from devices.hardware.cpu_limit import LEAST_CORES
from devices.hardware.hold import Hold
from devices.hardware.link_shaping import slow_link
from shared.errors import ConfigError
from simulations.fleet.device import Device

CLIENTS_SHARE = 0.8
"""Share of this machine's cores for the steps of all clients; the rest is for the server, for the
connections, and for whatever else runs here."""


@dataclass(frozen=True)
class PlannedClient:
    """A client of a rehearsal.

    Attributes:
        number: number of the client, which a fault names.
        name: name of its key.
        hold: what it is held to.
        seconds: predicted seconds of a round's steps on the device.
        memory_bytes: predicted peak memory of the client here.
        quantization: storage of the model's blocks.
    """

    number: int
    name: str
    hold: Hold
    seconds: float
    memory_bytes: int
    quantization: str

    @property
    def fits(self) -> bool:
        """Return whether the predicted memory is at most that of the device."""
        return self.memory_bytes <= self.hold.limit_bytes


def cores_of(own_seconds: float, device_seconds: float) -> float:
    """Return how many of this machine's cores compute as fast as a device.

    Args:
        own_seconds: processor seconds of some work on one core of this machine.
        device_seconds: seconds of the same work on the device.
    """
    return own_seconds / device_seconds


def least_dilation(shares: Sequence[float], machine_cores: int) -> float:
    """Return the least time dilation with which this machine is as fast as all devices together.

    Args:
        shares: for each client, how many of this machine's cores are as fast as its device. A
            client computes in one thread, so that it gets at most one of them.
        machine_cores: number of this machine's cores.
    """
    return max(1.0, *shares, sum(shares) / (CLIENTS_SHARE * machine_cores))


def check_dilation(dilation: float, shares: Sequence[float], machine_cores: int) -> None:
    """Refuse a time dilation with which this machine is slower than the devices.

    Raises:
        ConfigError: with the factor that would do.
    """
    least = least_dilation(shares, machine_cores)
    if dilation < least:
        raise ConfigError(
            f"--dilation {dilation:g}: a round's steps of {len(shares)} clients would take "
            f"{sum(shares):.1f} cores of this machine at the devices' speed, and there are "
            f"{machine_cores}; --dilation {least * 1.005:.1f} or more lets a second of the devices "
            "take as many seconds here"
        )


def plan_clients(
    devices: Sequence[Device],
    own_seconds: Mapping[str, float],
    steps: int,
    dilation: float,
    machine_cores: int,
) -> list[PlannedClient]:
    """Return what each client of a rehearsal is held to.

    Args:
        devices: emulated devices.
        own_seconds: processor seconds of a round's steps on one core of this machine, by
            quantization.
        steps: local steps of a round.
        dilation: seconds on this machine that stand for a second of the devices.
        machine_cores: number of this machine's cores.

    Raises:
        ConfigError: if the dilation is too small, with the least one.
    """
    predicted = [device.work(steps, 0) for device in devices]
    shares = [
        cores_of(own_seconds[device.group.quantization], seconds)
        for device, (seconds, _) in zip(devices, predicted, strict=True)
    ]
    check_dilation(dilation, shares, machine_cores)
    return [
        PlannedClient(
            number=device.number,
            name=f"{device.number}-{device.profile.name}",
            hold=Hold(
                device.profile.name,
                device.profile.usable_bytes,
                max(LEAST_CORES, share / dilation),
                slow_link(device.link, dilation),
                dilation,
            ),
            seconds=seconds,
            memory_bytes=memory,
            quantization=device.group.quantization,
        )
        for device, share, (seconds, memory) in zip(devices, shares, predicted, strict=True)
    ]
