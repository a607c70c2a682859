"""The plan of a rehearsal: what each client is held to, and what the formula predicts for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from samara.devices.hardware.cpu_limit import LEAST_CORES
from samara.devices.hardware.hold import Hold
from samara.devices.hardware.link_shaping import slow_link
from samara.shared.errors import ConfigError
from samara.shared.rehearsal_settings import Fault
from samara.simulations.fleet.device import Device

CLIENTS_SHARE = 0.8
"""Share of this machine's cores for the steps of all clients; the rest is for the server, for the
connections, and for whatever else runs here."""

_PATIENCE_SECONDS, _PATIENCE_ROUNDS = 300.0, 5.0


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


def patience(
    clients: Sequence[PlannedClient], faults: Sequence[Fault], first_pass: float, dilation: float
) -> float:
    """Return after how many seconds here without news a rehearsal is given up.

    They are five minutes, in which processes start again and Flower notices that one is gone, the
    longest fault, and five times what the slowest client is predicted to take for its first round.

    Args:
        clients: the clients.
        faults: the faults.
        first_pass: seconds of the slowest device for running the model once over its examples.
        dilation: seconds here that stand for a second of the devices.
    """
    slowest = first_pass + max(client.seconds for client in clients)
    longest = max((fault.seconds for fault in faults), default=0.0)
    return _PATIENCE_SECONDS + dilation * (_PATIENCE_ROUNDS * slowest + longest)


def core_shares(
    devices: Sequence[Device], own_seconds: Mapping[str, float], steps: int
) -> list[float]:
    """Return how many of this machine's cores are as fast as each device.

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
    """Return what each client of a rehearsal is held to.

    Args:
        devices: emulated devices.
        shares: how many of this machine's cores are as fast as each of them.
        memory_bytes: predicted peak memory of each client on this machine.
        steps: local steps of a round.
        dilation: seconds on this machine that stand for a second of the devices.
        shapes_links: whether this machine permits links; clients have none otherwise.
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
