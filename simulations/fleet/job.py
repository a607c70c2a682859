"""A device's simulated execution of an instruction, as a pure function."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from samara.devices.hardware.link import Transfer, download, upload
from samara.simulations.fleet.device import Device

Outcome = Literal["reported", "dropped out", "out of memory", "out of battery", "out of reach"]
_HOUR = 3600.0


@dataclass(frozen=True)
class Job:
    """A device's execution of an instruction.

    Attributes:
        device: index of the device's client.
        outcome: "reported", or the reason for a missing report.
        begun: virtual time in seconds when the instruction was sent.
        ended: virtual time in seconds when the report arrived or the job failed.
        compute: seconds of computing.
        transfer: seconds of transfer on the link.
        waited: seconds of waiting for the link.
        bytes_down: bytes received over the link, with headers and repeated packets.
        bytes_up: bytes sent over the link, with headers and repeated packets.
        joules: upper bound of the computing energy; None if unknown.
        peak_bytes: peak memory of the process.
        slow: whether other work on the device slowed the steps down.
        charge: battery charge at the end, in Wh.
    """

    device: int
    outcome: Outcome
    begun: float
    ended: float
    compute: float = 0.0
    transfer: float = 0.0
    waited: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    joules: float | None = None
    peak_bytes: int = 0
    slow: bool = False
    charge: float = 0.0


def job(
    device: Device,
    at: float,
    down: int,
    up: int,
    steps: int,
    charge: float,
    seed: list[int],
    measuring: int = 0,
    first: bool = False,
) -> Job:
    """Simulate a job, in which a device receives an instruction, takes its steps, and reports.

    Args:
        device: emulated device.
        at: virtual time in seconds when the instruction is sent.
        down: bytes of instruction and catch-up.
        up: bytes of the report.
        steps: number of local steps.
        charge: battery charge at the start, in Wh.
        seed: seed of jitter, packet loss, dropout and slowness.
        measuring: number of steps that measure curvature.
        first: whether the device must first run the model on its examples, for a readout.
    """
    random = np.random.default_rng(seed)
    group = device.group
    drops = random.random() < group.dropout
    moment = random.random()
    slow = random.random()
    seeds = random.integers(2**63, size=2)
    is_slow = slow < group.slow
    received = download(device.link, down, at, int(seeds[0]))
    if received is None:
        return Job(device.number, "out of reach", at, at, charge=charge)
    seconds, peak = device.work(steps, measuring)
    seconds += device.first_pass_seconds * first
    seconds *= group.slowdown if is_slow else 1.0
    outcome: Outcome = "reported"
    if peak > device.profile.usable_bytes:
        outcome = "out of memory"
        seconds = 0.0
        peak = device.profile.usable_bytes
    elif drops:
        outcome = "dropped out"
        seconds = moment * seconds
    watts = device.watts or 0.0
    if not device.at_charger(received.end) and watts * seconds > 0:
        spare = (charge - group.reserve * group.battery) * _HOUR
        if watts * seconds > spare:
            outcome = "out of battery"
            seconds = max(0.0, spare) / watts
    computed = received.end + seconds
    sent: Transfer | None = None
    if outcome == "reported":
        sent = upload(device.link, up, computed, int(seeds[1]))
        outcome = "reported" if sent else "out of reach"
    ended = sent.end if sent else computed
    left = device.charge_after(charge, at, ended) - watts * seconds / _HOUR
    return Job(
        device=device.number,
        outcome=outcome,
        begun=at,
        ended=ended,
        compute=seconds,
        transfer=received.seconds + (sent.seconds if sent else 0.0),
        waited=received.waiting_seconds + (sent.waiting_seconds if sent else 0.0),
        bytes_down=received.bytes,
        bytes_up=sent.bytes if sent else 0,
        joules=None if device.watts is None else watts * seconds,
        peak_bytes=peak,
        slow=is_slow,
        charge=max(0.0, left) if group.battery else 0.0,
    )
