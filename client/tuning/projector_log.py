"""The schedule and the log of checks of LSP-Offload's projectors.

OUT/projectors.jsonl  a line per check: number of layers, bias before and after
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

from samara.client.offload.offloaded_adam import OffloadedAdam
from samara.shared.storage.events import append_event, read_events

log = logging.getLogger("samara.tune")

PROJECTORS_FILE = "projectors.jsonl"


class ProjectorLog:
    """Regular checks of a run's projectors, with a log of the results.

    Args:
        folder: folder of the run.
        optimizer: optimizer with the projectors.
        frequency: number of steps between checks, from step 0 on.
    """

    def __init__(self, folder: Path, optimizer: OffloadedAdam, frequency: int) -> None:
        self._file = folder / PROJECTORS_FILE
        self._optimizer = optimizer
        self._frequency = frequency
        self._logged = {event["step"] for event in read_events(self._file)}

    def is_due(self, step: int) -> bool:
        """Return whether a check is due before a step.

        Args:
            step: number of steps taken.
        """
        return step % self._frequency == 0

    @contextmanager
    def checking(self, step: int, passes: int = 1) -> Iterator[None]:
        """Check all projectors in the backward passes inside the context, and log the result.

        If a continued run repeats a check, the check is logged only once.

        Args:
            step: number of steps taken.
            passes: number of backward passes.
        """
        begun = time.monotonic()
        processor = time.process_time()
        with self._optimizer.checking(passes) as checks:
            yield
        if step in self._logged or not checks:
            return
        after = [check.bias if check.learned is None else check.learned for check in checks]
        event = {
            "event": "projectors",
            "step": step,
            "layers": len(checks),
            "learned": sum(check.learned is not None for check in checks),
            "bias_before": fmean(check.bias for check in checks),
            "bias": fmean(after),
            "largest_bias": max(after),
            "learning_steps": sum(check.steps for check in checks),
            "seconds": round(time.monotonic() - begun, 3),
            "processor_seconds": round(time.process_time() - processor, 3),
        }
        append_event(self._file, event)
        log.info(
            "step %d: projectors of %d of %d layers learned, mean relative bias %.3g, now %.3g",
            step,
            event["learned"],
            len(checks),
            event["bias_before"],
            event["bias"],
            extra={"event": event},
        )
