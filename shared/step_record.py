"""A step size that outlives the process: what was observed, in a file of its own.

An observation is written before its step is, so that whoever has the steps has their observations
too. One whose step was never written is forgotten; the step, tried again, gives it again.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shared.errors import SamaraError
from shared.events import EventFollower, append_event, read_events
from shared.step_size import Observation, StepSize

STEP_SIZE_FILE = "step_size.jsonl"
_CLIENTS = "clients"


class RecordedStepSize:
    """The step size of a run.

    Attributes:
        size: after all steps that were taken.
    """

    def __init__(self, size: StepSize, file: Path | None = None, done: int = 0) -> None:
        """Begin, or go on.

        Args:
            size: before the first step.
            file: of the observations; without it they are in memory only.
            done: steps that were taken.

        Raises:
            SamaraError: if the file is damaged, or lacks one of these steps.
        """
        self.size, self._file = size, file
        events = {event.get("step"): event for event in read_events(file)} if file else {}
        for step in range(1, done + 1):
            if file and step not in events:
                raise SamaraError(
                    f"{file}: lacks step {step} of {done}; restore it, or begin the run in "
                    "another folder"
                )
            self.size = self.size.after(_observation(events[step], file))

    def record(self, seen: Observation | None, clients: Collection[int] = ()) -> StepSize:
        """The step size after one more observation, or none; it is on the disk when this returns.

        Args:
            seen: what was observed.
            clients: whose reports it was made of, for those who repeat the run.

        Raises:
            SamaraError: if the disk refuses.
        """
        self.size = self.size.after(seen)
        if self._file:
            try:
                told = asdict(seen) if seen else {}
                if seen and clients:
                    told[_CLIENTS] = sorted(clients)
                append_event(self._file, {"step": self.size.done} | told)
            except OSError as error:
                raise SamaraError(f"{self._file}: cannot be written: {error.strerror}") from error
        return self.size


def read_observed_clients(file: Path) -> dict[int, list[int] | None]:
    """By step, whose reports were observed; None if some were and it was not written down whose.

    Of a step that was tried again the last try counts.
    """
    heard: dict[int, list[int] | None] = {}
    for event in EventFollower(file).read_new():
        heard[event["step"]] = [] if list(event) == ["step"] else event.get(_CLIENTS)
    return heard


def _observation(event: Mapping[str, Any], file: Path | None) -> Observation | None:
    if list(event) == ["step"]:
        return None
    apart = ("step", _CLIENTS)
    try:
        return Observation(**{key: value for key, value in event.items() if key not in apart})
    except TypeError as error:
        raise SamaraError(f"{file}: damaged: {error}; begin the run in another folder") from error
