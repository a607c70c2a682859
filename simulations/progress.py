"""The progress of a run: a live bar on a terminal, plain lines elsewhere."""

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from samara.shared.config import RunConfig
from samara.simulations.notebook_progress import NotebookProgress
from samara.simulations.run_progress import PERSONAL, PLAN, RunProgress

_LOGGERS = ("samara.server", "samara.simulation")
_LABELS = {"query": "asking clients", "evaluate": "evaluating"}
log = logging.getLogger("samara.simulation")


class _Lines(logging.Handler):
    """A log handler that prints a run's log lines and labels the bar with the latest event.

    Args:
        console: where lines are printed.
        say: shows a text as the bar's label.
        brief: show only the bar and warnings.
        on_event: called with the event of each log line that has one.
    """

    def __init__(
        self,
        console: Console,
        say: Callable[[str], None],
        brief: bool,
        on_event: Callable[[dict[str, Any]], None],
    ) -> None:
        super().__init__(logging.INFO)
        self._console, self._say, self._brief = console, say, brief
        self._on_event = on_event

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", {})
        self._on_event(event)
        if event.get("event") in ("round", "step"):
            self._say(record.getMessage())
            if self._console.is_terminal:
                return
        if self._brief and record.levelno < logging.WARNING:
            return
        style = "yellow" if record.levelno >= logging.WARNING else None
        self._console.print(
            record.getMessage(), style=style, highlight=False, markup=False, soft_wrap=True
        )


@contextmanager
def watched(config: RunConfig, brief: bool = False) -> Iterator[Callable[[str, int], None]]:
    """Show the progress of a run; yields the callback that the engine calls per message.

    The bar is the expected time of the run, from the plan on, and corrected as the run goes.

    Args:
        config: settings of the run.
        brief: show only the bar and warnings, where other output does not go.
    """
    passed = _Passed(config)

    def on_event(event: dict[str, Any]) -> None:
        if (done := passed.read(event)) is not None:
            progress.update(task, completed=done, total=passed.total)

    with _shown(_LOGGERS, brief, on_event) as (console, progress, task):
        clients = config.data.clients
        cohort = math.ceil(config.cohort.fraction * clients)
        personal: set[int] = set()
        trained: list[int] = []

        def say(text: str) -> None:
            if not console.is_terminal and not brief:
                console.print(text)

        def on_message(message_type: str, partition: int) -> None:
            if (done := passed.answer(message_type, partition)) is not None:
                progress.update(task, completed=done, total=passed.total)
            if message_type == "train":
                trained.append(partition)
                quarters = 4 * len(trained) // cohort
                if quarters > 4 * (len(trained) - 1) // cohort and len(trained) <= cohort:
                    say(f"first round: {len(trained)} of {cohort} clients")
            elif message_type == PERSONAL and partition not in personal:
                personal.add(partition)
                text = f"personal models: {len(personal)} of {clients} clients"
                progress.update(task, description=text)
                say(text)
            elif message_type != PERSONAL:
                progress.update(task, description=_LABELS.get(message_type, message_type))

        yield on_message


@contextmanager
def logged(config: RunConfig) -> Iterator[Callable[[str, int], None]]:
    """Log the progress of a run that nobody watches, where its log lines are wanted.

    Args:
        config: settings of the run.
    """
    passed, begun, said = _Passed(config), time.monotonic(), 0

    def on_message(message_type: str, partition: int) -> None:
        nonlocal said
        done = passed.answer(message_type, partition)
        if done is not None and (tenths := int(10 * done / passed.total)) > said:
            said = tenths
            left = (time.monotonic() - begun) * (passed.total - done) / done
            log.info("%d %% done, about %.0f s left", 10 * tenths, left)

    class _Events(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            passed.read(getattr(record, "event", {}))

    handler = _Events()
    for name in _LOGGERS:
        logging.getLogger(name).addHandler(handler)
    try:
        yield on_message
    finally:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(handler)


class _Passed:
    """The expected time of a run that has passed, as its log lines and messages say.

    Args:
        config: settings of the run.

    Attributes:
        total: expected seconds of the whole run; 0 before its plan.
    """

    def __init__(self, config: RunConfig) -> None:
        self._rounds, self.total = max(1, config.federated_rounds), 0.0
        self._progress: RunProgress | None = None
        self._lock = threading.Lock()  # clients answer in threads

    def read(self, event: dict[str, Any]) -> float | None:
        """Return the seconds that have passed after the event of a log line, if it says so."""
        with self._lock:
            if event.get("event") == PLAN:
                progress: RunProgress = event["progress"]
                self._progress = progress
                self.total = progress.total
                return progress.done
            if event.get("event") == "round" and self._progress is not None:
                return self._progress.end_round(event["round"], self._rounds)
            return None

    def answer(self, message_type: str, client: int) -> float | None:
        """Return the seconds that have passed after a message; None before the plan."""
        with self._lock:
            known = self._progress
            return None if known is None else known.answer(message_type, client)


@contextmanager
def stoppable(
    message: str = "samara: stopped; the same command continues the run",
) -> Iterator[None]:
    """Say what holds where a command is stopped by Ctrl-C, and end with status 130.

    Args:
        message: printed then.

    Raises:
        SystemExit: instead of KeyboardInterrupt.
    """
    try:
        yield
    except KeyboardInterrupt:
        print(message, file=sys.stderr)
        raise SystemExit(130) from None


@contextmanager
def watched_tuning(brief: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of a tuning run; yields the callback that it calls per step.

    Args:
        brief: show only the bar and warnings.
    """
    with _shown(("samara.tune",), brief, lambda event: None) as (_, progress, task):
        yield lambda done, steps: progress.update(task, completed=done, total=steps)


@contextmanager
def _shown(
    loggers: Sequence[str], brief: bool, on_event: Callable[[dict[str, Any]], None]
) -> Iterator[tuple[Console, Progress | NotebookProgress, TaskID]]:
    """Show a bar, with the lines of loggers above it; a brief one where errors are shown."""
    console = Console(stderr=brief)
    if console.is_jupyter:
        progress: Progress | NotebookProgress = NotebookProgress()
    else:
        progress = _bar(console)
    with progress:
        task = progress.add_task("loading libraries", total=None)
        handler = _Lines(
            console, lambda text: progress.update(task, description=text), brief, on_event
        )
        for name in loggers:
            logging.getLogger(name).addHandler(handler)
            logging.getLogger(name).setLevel(logging.INFO)
        if not console.is_terminal and not brief:
            console.print("loading libraries")
        try:
            yield console, progress, task
        finally:
            for name in loggers:
                logging.getLogger(name).removeHandler(handler)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
