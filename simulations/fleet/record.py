"""The fields that a fleet adds to events and results (docs/reference/result.md)."""

from collections.abc import Mapping, Sequence
from typing import Any

from samara.simulations.fleet.device import Device
from samara.simulations.fleet.job import Job

_DIGITS = 6


def of_job(done: Job, now: float) -> dict[str, Any]:
    """Return a device's entry in the event of a round.

    Args:
        done: job of the device.
        now: end of the round, virtual time in seconds.
    """
    late = done.outcome == "reported" and done.ended > now
    waited = done.waited
    if done.outcome == "reported" and not late:
        waited += now - done.ended
    return {
        "outcome": "late" if late else done.outcome,
        "begun": round(done.begun, _DIGITS),
        "ended": round(done.ended, _DIGITS),
        "compute": round(done.compute, _DIGITS),
        "transfer": round(done.transfer, _DIGITS),
        "waiting": round(waited, _DIGITS),
        "joules": None if done.joules is None else round(done.joules, _DIGITS),
        "bytes_up": done.bytes_up,
        "bytes_down": done.bytes_down,
        "peak_bytes": done.peak_bytes,
        "slow": done.slow,
        "charge": round(done.charge, _DIGITS),
    }


def of_devices(devices: Sequence[Device], rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a fleet's fields of the result: start and end of the run, and totals per device.

    Args:
        devices: devices of the fleet.
        rounds: events of all rounds.
    """
    parts = [event["fleet"] for event in rounds if "fleet" in event]
    return {
        "begun": parts[0]["begun"] if parts else 0.0,
        "ended": parts[-1]["ended"] if parts else 0.0,
        "devices": {
            str(device.number): _of_device(
                device,
                [own for each in parts if (own := each["devices"].get(str(device.number)))],
            )
            for device in devices
        },
    }


def _of_device(device: Device, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    outcomes: dict[str, int] = {}
    for part in parts:
        outcomes[part["outcome"]] = outcomes.get(part["outcome"], 0) + 1
    return {
        "device": device.profile.name,
        "power_mode": device.profile.mode,
        "link": device.link.name,
        "quantization": device.group.quantization,
        "step_seconds": device.step_seconds,
        "fits": device.estimate.fits,
        "outcomes": outcomes,
        "slow": sum(part["slow"] for part in parts),
        "compute_seconds": round(sum(part["compute"] for part in parts), _DIGITS),
        "transfer_seconds": round(sum(part["transfer"] for part in parts), _DIGITS),
        "waiting_seconds": round(sum(part["waiting"] for part in parts), _DIGITS),
        "energy_joules": (
            None
            if device.watts is None
            else round(sum(part["joules"] or 0.0 for part in parts), _DIGITS)
        ),
        "bytes_up": sum(part["bytes_up"] for part in parts),
        "bytes_down": sum(part["bytes_down"] for part in parts),
        "peak_memory_bytes": max((part["peak_bytes"] for part in parts), default=0),
    }
