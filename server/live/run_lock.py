"""The right to serve a run: one server has it at a time, and none once the run has moved."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from samara.shared.errors import SamaraError
from samara.shared.files import make_folder

SERVER_LOCK = "server.lock"
"""Name of the file in a run's folder that the server of the run holds a lock on."""
_SERVED = "{folder}: another `samara server up` is serving this run"
MOVED_FILE = "moved.json"
"""Name of the file that a run leaves in its folder when it moves to another host."""


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Lock a run's folder, so that no other server uses it.

    Raises:
        SamaraError: if another process has locked it.
    """
    make_folder(folder)
    try:
        lock = FileLock(folder / SERVER_LOCK).acquire(timeout=0)
    except Timeout:
        raise SamaraError(_SERVED.format(folder=folder)) from None
    with lock:
        yield


def check_not_served(folder: Path) -> None:
    """Raise an error if another process serves a run, before anything of the run is written.

    Raises:
        SamaraError: if one does.
    """
    if is_locked(folder / SERVER_LOCK):
        raise SamaraError(_SERVED.format(folder=folder))


def is_locked(file: Path) -> bool:
    """Return whether a process holds a lock on a file, which need not exist."""
    if not file.exists():
        return False
    try:
        with FileLock(file).acquire(timeout=0):
            return False
    except Timeout:
        return True


def check_not_moved(folder: Path) -> None:
    """Raise an error if a run has moved to another host.

    Raises:
        SamaraError: if it has.
    """
    file = folder / MOVED_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        moved = f"on {content['time']} to {content['file']}"
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError, KeyError, TypeError):
        moved = "to another host"
    raise SamaraError(
        f"{folder}: this run has moved {moved}, and two servers that go on from one ledger part; "
        f"serve it where that file was restored. Only if it never was: delete {file}"
    )
