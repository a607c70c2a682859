"""The virtual clock of a fleet, which also decides which devices are reachable."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from samara.shared.errors import TrainingError
from samara.simulations.engines.in_process import FIRST_CLIENT_NODE
from samara.simulations.fleet.device import Device
from samara.simulations.fleet.job import Job, job
from samara.simulations.fleet.record import of_devices, of_job

_HOUR = 3600.0


@dataclass
class _Battery:
    """The battery of a device.

    Attributes:
        charge: charge at the time `since`, in Wh.
        since: virtual time in seconds.
        busy: virtual time in seconds until which the device carries out an instruction.
    """

    charge: float
    since: float
    busy: float = 0.0


class VirtualClock:
    """A `Clock` and `Meter` of virtual seconds; second 0 is midnight.

    All times are a function of the seed and of the server's requests. Time passes only while the
    server waits. The server's work, hellos and evaluations take no virtual time.

    Args:
        devices: devices of the fleet; number i is client i.
        seed: seed of the run.
        begins: hour of the day at which the run begins.
        every: minimum virtual seconds between the starts of rounds.
        rounds: events of the earlier rounds of a continued run.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        seed: int,
        begins: float,
        every: float = 0.0,
        rounds: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._devices = devices
        self._seed = seed
        self._every = every
        self._now = self._begun = begins * _HOUR
        self._batteries = [_Battery(device.charge, self._now) for device in devices]
        self._jobs: list[Job] = []
        self._due: list[float] = []
        self._owed = [0] * len(devices)
        self._prepared: set[int] = set()
        for event in rounds:
            part = event["fleet"]
            self._now = self._begun = max(part["ended"], part["begun"] + every)
            for number, entry in part["devices"].items():
                self._batteries[int(number)] = _Battery(
                    entry["charge"], entry["ended"], entry["ended"]
                )
                if entry["outcome"] in ("reported", "late"):
                    self._prepared.add(int(number))

    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def wait(self, most: float, waited: float = inf) -> None:
        """Advance to the next report, or to the next time at which a device becomes available.

        Args:
            most: maximum time to advance, in virtual seconds.
            waited: not used.

        Raises:
            TrainingError: if no device can ever take part again.
        """
        self._due = [moment for moment in self._due if moment > self._now]
        following = min(self._due) if self._due else self._next_change()
        if min(following, most) == inf:
            raise TrainingError(
                "no device of the fleet can ever take part again; change fleet.devices"
            )
        self._now = min(following, self._now + most)

    def is_reachable(self, node: int) -> bool:
        """Return whether the device of a node is connected, has enough power, and is not busy."""
        return self._is_free(node - FIRST_CLIENT_NODE)

    def owe(self, number: int, size: int) -> None:
        """Add bytes that a device will receive together with its next instruction."""
        self._owed[number] += size

    def ask(
        self,
        number: int,
        round_number: int,
        down: int,
        up: int,
        steps: int,
        measuring: int = 0,
    ) -> Job:
        """Start an instruction on a device at the current time; see `fleet.job.job`."""
        device = self._devices[number]
        battery = self._batteries[number]
        if not self._jobs:
            self._begun = self._now
        charge = device.charge_after(battery.charge, battery.since, self._now)
        down += self._owed[number]
        seed = [self._seed, round_number, number]
        first = number not in self._prepared
        done = job(device, self._now, down, up, steps, charge, seed, measuring, first)
        if done.outcome == "reported":
            self._prepared.add(number)
        if done.outcome == "reported":
            self._due.append(done.ended)
        self._owed[number] = 0
        self._batteries[number] = _Battery(done.charge, done.ended, done.ended)
        self._jobs.append(done)
        return done

    def finish_round(self) -> dict[str, Any]:
        """Advance to the earliest start of the next round; return the fleet's fields of the event.

        These are the start and end of the round, and the outcome of every asked device.
        """
        part = {
            "begun": self._begun,
            "ended": self._now,
            "devices": {str(done.device): of_job(done, self._now) for done in self._jobs},
        }
        self._now = max(self._now, self._begun + self._every)
        self._begun = self._now
        self._jobs = []
        return {"fleet": part}

    def finish_run(self, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return every device's totals over the rounds of the run."""
        return {"fleet": of_devices(self._devices, rounds)}

    def _is_free(self, number: int) -> bool:
        battery = self._batteries[number]
        return battery.busy <= self._now and self._devices[number].is_free(
            self._now, self._charge(number)
        )

    def _charge(self, number: int) -> float:
        device = self._devices[number]
        battery = self._batteries[number]
        if not device.group.battery:
            return 0.0
        return device.charge_after(battery.charge, battery.since, self._now)

    def _next_change(self) -> float:
        """Return the next virtual time at which an unavailable device may be able to take part."""
        moments = [
            max(self._batteries[number].busy, device.next_change(self._now, self._charge(number)))
            for number, device in enumerate(self._devices)
            if not self._is_free(number)
        ]
        return min((moment for moment in moments if moment > self._now), default=inf)
