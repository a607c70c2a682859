"""The progress of a run: a live bar on a terminal, plain lines elsewhere."""

import logging
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from samara.shared.config import RunConfig
from samara.shared.wire import PERSONAL_ACTION
from samara.simulations.notebook_progress import NotebookProgress

_PERSONAL = f"evaluate.{PERSONAL_ACTION}"


class _Lines(logging.Handler):
    """A log handler that prints a run's log lines and labels the bar with the latest event."""

    def __init__(self, console: Console, say: Callable[[str], None], brief: bool) -> None:
        super().__init__(logging.INFO)
        self._console, self._say, self._brief = console, say, brief

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", {})
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

    Args:
        config: settings of the run.
        brief: show only the bar and warnings.
    """
    with _shown(("samara.server", "samara.simulation"), brief) as (console, progress, task):
        clients = config.data.clients
        cohort = math.ceil(config.cohort.fraction * clients)
        # in rounds of one client; finetune takes the private ones from zero, too
        private = config.private_rounds * (1 + (config.method == "finetune"))
        whole = config.federated_rounds * cohort + private * clients
        done: set[int] = set()
        trained: list[int] = []

        def say(text: str) -> None:
            if not console.is_terminal and not brief:
                console.print(text)

        def on_message(message_type: str, partition: int) -> None:
            if message_type == "train":
                progress.update(task, advance=1, total=whole)
                trained.append(partition)
                quarters = 4 * len(trained) // cohort
                if quarters > 4 * (len(trained) - 1) // cohort and len(trained) <= cohort:
                    say(f"first round: {len(trained)} of {cohort} clients")
            elif message_type == _PERSONAL and partition not in done:
                done.add(partition)
                text = f"personal models: {len(done)} of {clients} clients"
                progress.update(task, advance=private, total=whole, description=text)
                say(text)
            else:
                progress.update(task, description=message_type)

        yield on_message


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
    with _shown(("samara.tune",), brief) as (_, progress, task):
        yield lambda done, steps: progress.update(task, completed=done, total=steps)


@contextmanager
def _shown(
    loggers: Sequence[str], brief: bool = False
) -> Iterator[tuple[Console, Progress | NotebookProgress, TaskID]]:
    """Show a bar, with the lines of loggers above it."""
    console = Console()
    if console.is_jupyter:
        progress: Progress | NotebookProgress = NotebookProgress()
    else:
        progress = _bar(console)
    with progress:
        task = progress.add_task("loading libraries", total=None)
        handler = _Lines(console, lambda text: progress.update(task, description=text), brief)
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
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
