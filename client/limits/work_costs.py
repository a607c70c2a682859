"""The cost of a client's work for its device, by run.

The file is for the owner. The server never sees the file, and no computation uses it. If the file
is damaged, the sums start over.
"""

from dataclasses import dataclass
from typing import Any, Self

from samara.shared.storage.kept_file import KeptFile

COSTS_FILE = "costs.json"


@dataclass(frozen=True)
class WorkCost:
    """The time and energy that a client spent on answering messages.

    Attributes:
        rounds: number of train instructions, including repeated and refused instructions.
        seconds: seconds of all messages, including pauses.
        paused: seconds of pauses.
        joules: energy of the whole machine during `seconds`; 0 without a sensor.
    """

    rounds: int = 0
    seconds: float = 0.0
    paused: float = 0.0
    joules: float = 0.0

    def __add__(self, other: Self) -> "WorkCost":
        """Return the sum of two costs."""
        return WorkCost(
            self.rounds + other.rounds,
            self.seconds + other.seconds,
            self.paused + other.paused,
            self.joules + other.joules,
        )


class WorkCosts(KeptFile[dict[str, WorkCost]]):
    """The file of a client's costs, by run id in hex."""

    name = COSTS_FILE
    damaged = "{file}: {problem}; the costs start at 0 again"
    is_needed = False
    empty = dict

    def add(self, run_id: bytes, cost: WorkCost) -> None:
        """Add a cost to a run's sum.

        Raises:
            TrainerError: if the file cannot be written.
        """
        costs, run = self.read(), run_id.hex()
        self.write(costs | {run: costs.get(run, WorkCost()) + cost})

    def _parse(self, value: Any) -> dict[str, WorkCost]:
        return {
            str(run_id): WorkCost(
                int(one["rounds"]),
                float(one["seconds"]),
                float(one["paused"]),
                float(one["joules"]),
            )
            for run_id, one in value.items()
        }
