"""The display of a run's progress in a notebook: one line below the cell, updated in place."""

import time
from types import TracebackType
from typing import Any, Self

from rich.progress import TaskID

_SECONDS_BETWEEN = 0.2
_LINE = TaskID(0)


class NotebookProgress:
    """A progress line with the methods of rich's `Progress` that displays of runs use.

    The notebook display of rich needs ipywidgets and leaves a widget in the notebook's file.
    """

    def __init__(self) -> None:
        self._text = ""
        self._done = 0.0
        self._total = 0.0
        self._begun = self._shown = time.monotonic()
        self._line: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._line is not None:
            self._line.update({"text/plain": ""}, raw=True)

    def add_task(self, text: str, total: float | None = None) -> TaskID:
        """Show the line, and return the id of its task."""
        from IPython.display import display

        self._text = text
        self._total = total or 0.0
        self._line = display(self._content(), raw=True, display_id=True)
        return _LINE

    def update(
        self,
        task: TaskID,
        *,
        description: str | None = None,
        advance: float = 0.0,
        completed: float | None = None,
        total: float | None = None,
    ) -> None:
        """Change the line's content; the line is redrawn at most five times a second."""
        self._text = self._text if description is None else description
        self._done = self._done + advance if completed is None else completed
        self._total = self._total if total is None else total
        if (now := time.monotonic()) - self._shown >= _SECONDS_BETWEEN:
            self._shown = now
            self._line.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        share = f"{min(1.0, self._done / self._total):.0%}, " if self._total else ""
        elapsed = time.monotonic() - self._begun
        left = ""
        if 0 < self._done < self._total:
            left = f", about {elapsed * (self._total / self._done - 1):.0f} s left"
        return {"text/plain": f"{self._text} ({share}{elapsed:.0f} s{left})"}
