"""Output of the Python interface: progress displays, and tables as text."""

import warnings
from collections.abc import Callable
from io import StringIO

from rich.console import Console

_WIDTH = 100


def is_shown(progress: bool | None) -> bool:
    """Return whether to show the progress of a run.

    Args:
        progress: the caller's choice. None shows progress on a terminal and in a notebook.
    """
    console = Console(stderr=True)
    return (console.is_terminal or console.is_jupyter) if progress is None else progress


def hide_widget_warning() -> None:
    """Hide tqdm's warning that ipywidgets is missing; Samara does not need this package."""
    warnings.filterwarnings("ignore", message="IProgress not found")


def text_of(show: Callable[[Console], None]) -> str:
    """Return as plain text whatever a function prints to a console."""
    printed = StringIO()
    show(Console(file=printed, width=_WIDTH, force_jupyter=False, force_terminal=False))
    return printed.getvalue().rstrip()
