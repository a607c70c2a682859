"""The dashboard of `samara client up`: the client's status, redrawn on the terminal.

Meanwhile, the output of the client's processes goes to a file. The dashboard shows the file's last
lines.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from samara.devices.live.client_folder import MESSAGES_FILE
from samara.devices.live.client_status import StatusReader
from samara.devices.live.status_display import render_status
from samara.shared.errors import SamaraError

_SECONDS_BETWEEN = 2.0
_LINES_SHOWN = 6
_MOST_TAIL_BYTES = 2**14


@contextmanager
def dashboard(folder: Path) -> Iterator[None]:
    """Show a client's status on the terminal during a ``with`` block.

    Without a terminal, messages are printed as they arrive.

    Args:
        folder: folder of the client.
    """
    if not sys.stdout.isatty():
        yield
        return
    file = folder / MESSAGES_FILE
    with output_to(file) as terminal:
        draw = _drawing(folder, file)
        with Live(
            console=terminal,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        ) as live:
            end = threading.Event()

            def repeat() -> None:
                while not end.wait(_SECONDS_BETWEEN):
                    live.update(draw(), refresh=True)

            thread = threading.Thread(target=repeat, name="dashboard", daemon=True)
            thread.start()
            try:
                yield
            finally:
                end.set()
                thread.join()
                live.update(draw(), refresh=True)
        terminal.print(f"messages are in {file}", soft_wrap=True)


@contextmanager
def output_to(file: Path) -> Iterator[Console]:
    """Redirect the output of this process and its children to a file; yield the terminal's console.

    Args:
        file: path of the file, which is overwritten.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    kept = {number: os.dup(number) for number in (1, 2)}
    for number in kept:
        os.dup2(descriptor, number)
    os.close(descriptor)
    try:
        with os.fdopen(os.dup(kept[1]), "w", encoding="utf-8") as terminal:
            yield Console(file=terminal)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in kept.items():
            os.dup2(old, number)
            os.close(old)


def _drawing(folder: Path, messages: Path) -> Callable[[], RenderableType]:
    """Return a function that reads and draws the status of a client."""
    readers: list[StatusReader] = []

    def draw() -> RenderableType:
        last = last_lines(messages, _LINES_SHOWN)
        try:
            readers[:] = readers or [StatusReader(folder)]
            return render_status(readers[0].read(), last)
        except SamaraError as error:
            return Text("\n".join([f"the status cannot be read: {error}", *last]))

    return draw


def last_lines(file: Path, count: int) -> list[str]:
    """Return the last lines of a text file that is still being written; empty if it cannot be read.

    Colours and other terminal control characters are removed.
    """
    try:
        with file.open("rb") as content:
            content.seek(max(file.stat().st_size - _MOST_TAIL_BYTES, 0))
            text = content.read().decode(errors="replace")
    except OSError:
        return []
    plain = (Text.from_ansi(line).plain for line in text.splitlines()[-count:])
    return ["".join(filter(str.isprintable, line)) for line in plain]
