"""The display of a run's progress: a live bar on a terminal, and otherwise plain lines."""

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

from samara.shared.settings.config import RunConfig
from samara.simulations.planning.run_progress import PERSONAL, PLAN, RunProgress
from samara.simulations.progress.notebook import NotebookProgress

_LOGGERS = ("samara.server", "samara.simulation")
_LABELS = {"query": "asking clients", "evaluate": "evaluating"}
log = logging.getLogger("samara.simulation")


class _Lines(logging.Handler):
    """A log handler that prints a run's log lines, and labels the bar with the latest event.

    Args:
        console: console for the lines.
        say: function that sets the bar's label.
        brief: whether to show only the bar and warnings.
        on_event: function that is called with the event of each log line; empty without an event.
    """

    def __init__(
        self,
        console: Console,
        say: Callable[[str], None],
        brief: bool,
        on_event: Callable[[dict[str, Any]], None],
    ) -> None:
        super().__init__(logging.INFO)
        self._console = console
        self._say = say
        self._brief = brief
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
    """Show the progress of a run; yield a function that the engine calls for each message.

    The bar shows the elapsed part of the run's expected time. It starts with the plan and is
    corrected during the run.

    Args:
        config: settings of the run.
        brief: whether to show only the bar and warnings, on standard error.
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
    """Log the progress of a run at each tenth; yield a function to call for each message.

    Args:
        config: settings of the run.
    """
    passed = _Passed(config)
    begun = time.monotonic()
    said = 0

    def on_message(message_type: str, partition: int) -> None:
        nonlocal said
        done = passed.answer(message_type, partition)
        if done is not None and (tenths := int(10 * done / passed.total)) > said:
            said = tenths
            left = (time.monotonic() - begun) * (passed.total - done) / done
            log.info("%d %% completed, about %.0f s left", 10 * tenths, left)

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
    """The elapsed part of a run's expected time, derived from log lines and messages.

    Args:
        config: settings of the run.

    Attributes:
        total: expected seconds of the whole run; 0 before its plan.
    """

    def __init__(self, config: RunConfig) -> None:
        self._rounds = max(1, config.federated_rounds)
        self.total = 0.0
        self._progress: RunProgress | None = None
        self._lock = threading.Lock()  # clients answer in threads

    def read(self, event: dict[str, Any]) -> float | None:
        """Return the elapsed expected seconds after an event; None for events without progress."""
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
        """Return the elapsed expected seconds after a message; None before the plan."""
        with self._lock:
            known = self._progress
            return None if known is None else known.answer(message_type, client)


@contextmanager
def stoppable(
    message: str = "samara: stopped; the same command continues the run",
) -> Iterator[None]:
    """Print a message after Ctrl-C, and exit with status 130.

    Args:
        message: message to print, with the way to continue.

    Raises:
        SystemExit: in place of KeyboardInterrupt.
    """
    try:
        yield
    except KeyboardInterrupt:
        print(message, file=sys.stderr)
        raise SystemExit(130) from None


@contextmanager
def watched_tuning(brief: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of a run of `samara tune`; yield a function to call for each step.

    Args:
        brief: whether to show only the bar and warnings.
    """
    with _shown(("samara.tune",), brief, lambda event: None) as (_, progress, task):
        yield lambda done, steps: progress.update(task, completed=done, total=steps)


@contextmanager
def _shown(
    loggers: Sequence[str], brief: bool, on_event: Callable[[dict[str, Any]], None]
) -> Iterator[tuple[Console, Progress | NotebookProgress, TaskID]]:
    """Show a bar below the log lines of some loggers; a brief bar is shown on standard error."""
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
