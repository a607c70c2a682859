"""The plan of a rehearsal: the limits of each client, and its predicted time and memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from samara.devices.hardware.cpu_limit import LEAST_CORES
from samara.devices.hardware.hold import Hold
from samara.devices.hardware.link_shaping import slow_link
from samara.shared.errors import ConfigError
from samara.shared.settings.rehearsal import Fault
from samara.simulations.fleet.device import Device

CLIENTS_SHARE = 0.8
"""Share of this machine's cores for the steps of all clients.

The server, the connections and other programs use the other cores.
"""

_PATIENCE_SECONDS = 300.0
_PATIENCE_ROUNDS = 5.0


@dataclass(frozen=True)
class PlannedClient:
    """A client of a rehearsal.

    Attributes:
        number: number by which faults refer to the client.
        name: name of the client's key.
        hold: limits of the client's processes.
        seconds: predicted seconds of a round's steps on the device.
        memory_bytes: predicted peak memory of the client on this machine.
        quantization: storage type of the model's blocks.
    """

    number: int
    name: str
    hold: Hold
    seconds: float
    memory_bytes: int
    quantization: str

    @property
    def fits(self) -> bool:
        """Return whether the predicted memory is within the device's limit."""
        return self.memory_bytes <= self.hold.limit_bytes


def cores_of(own_seconds: float, device_seconds: float) -> float:
    """Return the number of this machine's cores that together are as fast as a device.

    Args:
        own_seconds: processor seconds of a piece of work on one core of this machine.
        device_seconds: seconds of the same work on the device.
    """
    return own_seconds / device_seconds


def least_dilation(shares: Sequence[float], machine_cores: int) -> float:
    """Return the smallest time dilation at which this machine is as fast as all devices together.

    Args:
        shares: for each client, the number of this machine's cores that are as fast as its device.
            A client computes in one thread and therefore gets at most one core.
        machine_cores: number of this machine's cores.
    """
    return max(1.0, *shares, sum(shares) / (CLIENTS_SHARE * machine_cores))


def check_dilation(dilation: float, shares: Sequence[float], machine_cores: int) -> None:
    """Check that this machine is as fast as all devices together at a time dilation.

    Raises:
        ConfigError: if this machine is slower; the message names a sufficient dilation.
    """
    least = least_dilation(shares, machine_cores)
    if dilation < least:
        raise ConfigError(
            f"--dilation {dilation:g}: this machine is too slow to compute for {len(shares)} "
            f"clients at the speed of their devices ({sum(shares):.1f} cores of {machine_cores}); "
            f"use --dilation {least * 1.005:.1f} or more (seconds on this machine per second on "
            "the devices)"
        )


def patience(
    clients: Sequence[PlannedClient], faults: Sequence[Fault], first_pass: float, dilation: float
) -> float:
    """Return the seconds without news after which a rehearsal is abandoned.

    The seconds are seconds of this machine. They are the sum of three times: five minutes, in which
    processes restart and Flower detects lost processes; the longest fault; and five times the
    predicted duration of the slowest client's first round.

    Args:
        clients: the clients.
        faults: the faults.
        first_pass: seconds that the slowest device needs for one pass over its examples.
        dilation: seconds on this machine per second of the devices.
    """
    slowest = first_pass + max(client.seconds for client in clients)
    longest = max((fault.seconds for fault in faults), default=0.0)
    return _PATIENCE_SECONDS + dilation * (_PATIENCE_ROUNDS * slowest + longest)


def core_shares(
    devices: Sequence[Device], own_seconds: Mapping[str, float], steps: int
) -> list[float]:
    """Return, for each device, the number of this machine's cores that are as fast as the device.

    Args:
        devices: emulated devices.
        own_seconds: processor seconds of a round's steps on one core of this machine, by
            quantization.
        steps: local steps of a round.
    """
    return [
        cores_of(own_seconds[device.group.quantization], device.work(steps, 0)[0])
        for device in devices
    ]


def plan_clients(
    devices: Sequence[Device],
    shares: Sequence[float],
    memory_bytes: Sequence[int],
    steps: int,
    dilation: float,
    shapes_links: bool,
) -> list[PlannedClient]:
    """Return the planned limits of each client of a rehearsal.

    Args:
        devices: emulated devices.
        shares: number of this machine's cores that are as fast as each device.
        memory_bytes: predicted peak memory of each client on this machine.
        steps: local steps of a round.
        dilation: seconds on this machine per second of the devices.
        shapes_links: whether this machine permits link shaping; otherwise links are not limited.
    """
    return [
        PlannedClient(
            number=device.number,
            name=f"{device.number}-{device.profile.name}",
            hold=Hold(
                device.profile.name,
                device.profile.usable_bytes,
                max(LEAST_CORES, share / dilation),
                slow_link(device.link, dilation) if shapes_links else None,
                dilation,
            ),
            seconds=device.work(steps, 0)[0],
            memory_bytes=memory,
            quantization=device.group.quantization,
        )
        for device, share, memory in zip(devices, shares, memory_bytes, strict=True)
    ]
