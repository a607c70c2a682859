"""The port of a run's server, noted for what names its address later."""

from pathlib import Path

from samara.shared.files import write_durably

DEFAULT_PORT = 8000
"""Port of a server unless it is given another."""
DEFAULT_DASHBOARD_PORT = 8421
"""Port of a server's page and metrics unless it is given another."""
_FILE = "port"


def note_port(folder: Path, port: int) -> None:
    """Note the port that a server listens on.

    Args:
        folder: folder of its SuperLink's files.
        port: the port.
    """
    write_durably(folder / _FILE, f"{port}\n".encode())


def read_port(folder: Path) -> int:
    """Return the port that a server listened on last, or the usual one if none was noted."""
    try:
        return int((folder / _FILE).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return DEFAULT_PORT
