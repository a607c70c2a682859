"""Output of Python programs: progress where somebody looks, and tables as text."""

import warnings
from collections.abc import Callable
from io import StringIO

from rich.console import Console

_WIDTH = 100


def is_shown(progress: bool | None) -> bool:
    """Return whether the progress of a run is shown: as asked, or on a terminal or in a notebook.

    Args:
        progress: what the program asked for; None if it did not.
    """
    console = Console(stderr=True)
    return (console.is_terminal or console.is_jupyter) if progress is None else progress


def hide_widget_warning() -> None:
    """Hide tqdm's warning that a notebook lacks ipywidgets, which nothing here needs."""
    warnings.filterwarnings("ignore", message="IProgress not found")


def text_of(show: Callable[[Console], None]) -> str:
    """Return as plain text what a function prints to a console."""
    printed = StringIO()
    show(Console(file=printed, width=_WIDTH, force_jupyter=False, force_terminal=False))
    return printed.getvalue().rstrip()
