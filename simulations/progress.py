"""The progress of a run: a live bar on a terminal, plain lines elsewhere."""

import logging
import math
from collections.abc import Callable, Iterator
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

from shared.config import RunConfig
from shared.wire import PERSONAL_ACTION

_PERSONAL = f"evaluate.{PERSONAL_ACTION}"


class _Lines(logging.Handler):
    """A log handler that prints a run's log lines and labels the bar with the latest event."""

    def __init__(self, console: Console, say: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._console, self._say = console, say

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", {})
        if event.get("event") in ("round", "step"):
            self._say(record.getMessage())
            if self._console.is_terminal:
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
    with _shown("samara.server", brief) as (console, progress, task):
        clients = config.data.clients
        cohort = math.ceil(config.cohort.fraction * clients)
        # in rounds of one client; finetune takes the private ones from zero, too
        private = config.private_rounds * (1 + (config.method == "finetune"))
        whole = config.federated_rounds * cohort + private * clients
        done: set[int] = set()

        def on_message(message_type: str, partition: int) -> None:
            if message_type == "train":
                progress.update(task, advance=1, total=whole)
            elif message_type == _PERSONAL and partition not in done:
                done.add(partition)
                text = f"personal models: {len(done)} of {clients} clients"
                progress.update(task, advance=private, total=whole, description=text)
                if not console.is_terminal and not brief:
                    console.print(text)
            else:
                progress.update(task, description=message_type)

        yield on_message


@contextmanager
def watched_tuning() -> Iterator[Callable[[int, int], None]]:
    """Show the progress of a tuning run; yields the callback that it calls per step."""
    with _shown("samara.tune") as (_, progress, task):
        yield lambda done, steps: progress.update(task, completed=done, total=steps)


@contextmanager
def _shown(logger_name: str, brief: bool = False) -> Iterator[tuple[Console, Progress, TaskID]]:
    """Show a bar, with the lines of a logger above it."""
    console = Console()
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    logger = logging.getLogger(logger_name)
    with progress:
        task = progress.add_task("loading model and data", total=None)
        handler = _Lines(console, lambda text: progress.update(task, description=text))
        handler.setLevel(logging.WARNING if brief else logging.INFO)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        if not console.is_terminal and not brief:
            console.print("loading model and data")
        try:
            yield console, progress, task
        finally:
            logger.removeHandler(handler)
