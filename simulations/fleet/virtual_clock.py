"""The emulated clock: a virtual clock, and who of the fleet can be reached."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from shared.errors import TrainingError
from simulations.engine import FIRST_CLIENT_NODE
from simulations.fleet.device import Device
from simulations.fleet.job import Job, job
from simulations.fleet.record import of_devices, of_job

_HOUR = 3600.0


@dataclass
class _Standing:
    """What changes of a device: Wh in its battery, since when, and until when it is busy."""

    charge: float
    since: float
    busy: float = 0.0


class VirtualClock:
    """A `server.transport.clock.Clock` that exists on a virtual clock; second 0 is a midnight.

    Everything is a function of the seed and of what the server asks for. Time passes only while
    the server waits: its own work, introductions and evaluations take none.

    Args:
        devices: of the fleet; number i is client i.
        seed: of the run.
        begins: hour of the day when the run begins.
        every: seconds between the beginnings of rounds, at least.
        rounds: events of the rounds that a continued run has behind it.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        seed: int,
        begins: float,
        every: float = 0.0,
        rounds: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._devices, self._seed, self._every = devices, seed, every
        self._now = self._begun = begins * _HOUR
        self._standing = [_Standing(device.charge, self._now) for device in devices]
        self._jobs: list[Job] = []
        self._due: list[float] = []
        self._owed = [0] * len(devices)
        for event in rounds:
            told = event["fleet"]
            self._now = self._begun = max(told["ended"], told["begun"] + every)
            for number, own in told["devices"].items():
                self._standing[int(number)] = _Standing(own["charge"], own["ended"], own["ended"])

    def now(self) -> float:
        """Virtual seconds."""
        return self._now

    def wait(self, most: float) -> None:
        """Go to the next report, or else to when a device becomes free, or as far as allowed.

        Raises:
            TrainingError: if nothing can ever happen again.
        """
        self._due = [moment for moment in self._due if moment > self._now]
        following = min(self._due) if self._due else self._next_change()
        if min(following, most) == inf:
            raise TrainingError(
                "no device of the fleet will ever be free again; check fleet.devices"
            )
        self._now = min(following, self._now + most)

    def reachable(self, nodes: Iterable[int]) -> list[int]:
        """Those whose link is there, that have power, and that are not busy."""
        return [node for node in nodes if self._is_free(node - FIRST_CLIENT_NODE)]

    def owe(self, number: int, size: int) -> None:
        """Let a device receive these bytes along with its next instruction."""
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
        """Let a device begin with an instruction now; see `simulations.fleet.job.job`."""
        device, standing = self._devices[number], self._standing[number]
        if not self._jobs:
            self._begun = self._now
        charge = device.charge_after(standing.charge, standing.since, self._now)
        down += self._owed[number]
        seed = [self._seed, round_number, number]
        done = job(device, self._now, down, up, steps, charge, seed, measuring)
        if done.outcome == "reported":
            self._due.append(done.ended)
        self._owed[number] = 0
        self._standing[number] = _Standing(done.charge, done.ended, done.ended)
        self._jobs.append(done)
        return done

    def finish_round(self) -> dict[str, Any]:
        """When the round began and ended, and what became of every device that was asked.

        Then time passes until the next round may begin.
        """
        told = {
            "begun": self._begun,
            "ended": self._now,
            "devices": {str(done.device): of_job(done, self._now) for done in self._jobs},
        }
        self._now = max(self._now, self._begun + self._every)
        self._begun, self._jobs = self._now, []
        return {"fleet": told}

    def finish_run(self, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What the run took of every device, summed over its rounds."""
        return {"fleet": of_devices(self._devices, rounds)}

    def _is_free(self, number: int) -> bool:
        standing = self._standing[number]
        return standing.busy <= self._now and self._devices[number].is_free(
            self._now, self._charge(number)
        )

    def _charge(self, number: int) -> float:
        device, standing = self._devices[number], self._standing[number]
        if not device.group.battery:
            return 0.0
        return device.charge_after(standing.charge, standing.since, self._now)

    def _next_change(self) -> float:
        """When a device that is not free now may become so."""
        moments = [
            max(self._standing[number].busy, device.next_change(self._now, self._charge(number)))
            for number, device in enumerate(self._devices)
            if not self._is_free(number)
        ]
        return min((moment for moment in moments if moment > self._now), default=inf)
