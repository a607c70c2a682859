"""The cost of a client's work for its device, by run, in a file of its owner's.

The server is not told. Nothing depends on the file: if it is damaged, the sums begin again.
"""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from samara.shared.errors import TrainerError
from samara.shared.files import make_folder, write_durably

log = logging.getLogger("samara.client")

COSTS_FILE = "costs.json"


@dataclass(frozen=True)
class WorkCost:
    """The cost of answering messages.

    Attributes:
        rounds: number of train instructions, repeated and refused ones included.
        seconds: seconds of all messages, pauses included.
        paused: seconds of pauses.
        joules: energy of the whole machine meanwhile; 0 if no sensor measures it.
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


class WorkCosts:
    """The costs in a client's file.

    Args:
        folder: folder of the client.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / COSTS_FILE

    def read(self) -> dict[str, WorkCost]:
        """Return the costs by run id in hex; none if the file is missing or damaged."""
        try:
            content = json.loads(self._file.read_text(encoding="utf-8"))
            return {
                str(run_id): WorkCost(
                    int(one["rounds"]),
                    float(one["seconds"]),
                    float(one["paused"]),
                    float(one["joules"]),
                )
                for run_id, one in content.items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s: %r; the costs begin again", self._file, error)
            return {}

    def add(self, run_id: bytes, cost: WorkCost) -> None:
        """Add a cost of a run.

        Raises:
            TrainerError: if the file cannot be written.
        """
        costs, run = self.read(), run_id.hex()
        costs[run] = costs.get(run, WorkCost()) + cost
        content = {run: asdict(one) for run, one in costs.items()}
        try:
            make_folder(self._file.parent)
            write_durably(self._file, json.dumps(content, sort_keys=True, indent=1).encode())
        except OSError as error:
            raise TrainerError(f"{self._file}: cannot be written: {error.strerror}") from error
