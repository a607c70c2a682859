"""A step size whose observations are recorded in a file, from which a run continues.

An observation is written before its step, so that every recorded step has its observation. One
whose step was not recorded is ignored on continuing; repeating the step makes the same one again.
"""

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from samara.shared.errors import SamaraError
from samara.shared.events import EventFollower, append_in_parts, read_events
from samara.shared.files import write_durably
from samara.shared.step_size import Observation, StepSize

log = logging.getLogger("samara")

STEP_SIZE_FILE = "step_size.jsonl"
_CLIENTS = "clients"
_OF_NOISE = ("loss_noise", "curvature_noise", "curvature_is_root")


class RecordedStepSize:
    """The step size of a run, with the file that its observations are recorded in.

    Attributes:
        size: step size after all recorded steps.
        latest: observation of the last recorded step; None if it has none.
    """

    def __init__(self, size: StepSize, file: Path | None = None, done: int = 0) -> None:
        """Create the step size, or restore it from the observations in the file.

        Args:
            size: step size before the first step.
            file: file of the observations; if None, they are not recorded.
            done: number of steps that were taken.

        Raises:
            SamaraError: if the file is damaged, or lacks one of these steps. Half of the last
                step's line is replaced by a line without observation instead.
        """
        self.size, self._file = size, file
        self.latest: Observation | None = None
        if file:
            _replace_half_line(file, done)
        events = {event.get("step"): event for event in read_events(file)} if file else {}
        for step in range(1, done + 1):
            if file and step not in events:
                raise SamaraError(
                    f"{file}: lacks step {step} of {done}; restore it, or begin the run in "
                    "another folder"
                )
            self.latest = _observation(events[step], file)
            self.size = self.size.after(self.latest)

    def record(self, observation: Observation | None, clients: Collection[int] = ()) -> StepSize:
        """Record an observation, and return the step size after it once it is on the disk.

        Args:
            observation: observation of the step; None if the step has none.
            clients: clients whose reports it is made of, for a repetition of the run.

        Raises:
            SamaraError: if the file cannot be written.
        """
        self.size, self.latest = self.size.after(observation), observation
        if self._file:
            try:
                event = _event(observation) if observation else {}
                if observation and clients:
                    event[_CLIENTS] = sorted(clients)
                append_in_parts(self._file, {"step": self.size.done} | event)
            except OSError as error:
                raise SamaraError(f"{self._file}: cannot be written: {error.strerror}") from error
        return self.size


def read_observed_clients(file: Path) -> dict[int, list[int] | None]:
    """Read, by step, the clients whose reports were observed; None if the file does not name them.

    Of a repeated step the last record counts.
    """
    clients_by_step: dict[int, list[int] | None] = {}
    for event in EventFollower(file).read_new():
        clients_by_step[event["step"]] = [] if list(event) == ["step"] else event.get(_CLIENTS)
    return clients_by_step


def _replace_half_line(file: Path, done: int) -> None:
    """Write the last step without observation if the file ends with half of its line.

    The step itself is in the ledger, so that only the step size misses what was observed.
    """
    data = file.read_bytes() if file.exists() else b""
    end = data.rfind(b"\n") + 1
    if end == len(data):
        return
    steps = {event.get("step") for event in read_events(file)}
    was_cut = file.stat().st_size == end
    if was_cut and done not in steps and steps.issuperset(range(1, done)):
        line = json.dumps({"step": done}) + "\n"
        write_durably(file, data[:end], line.encode())
        log.warning(
            "%s: the line of step %d was cut off; the step size goes on without its observation",
            file,
            done,
        )


def _event(observation: Observation) -> dict[str, Any]:
    event = asdict(observation)
    return {key: value for key, value in event.items() if value or key not in _OF_NOISE}


def _observation(event: Mapping[str, Any], file: Path | None) -> Observation | None:
    if list(event) == ["step"]:
        return None
    apart = ("step", _CLIENTS)
    try:
        return Observation(**{key: value for key, value in event.items() if key not in apart})
    except TypeError as error:
        raise SamaraError(f"{file}: damaged: {error}; begin the run in another folder") from error
