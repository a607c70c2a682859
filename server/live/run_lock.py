"""The lock of a run's folder: at most one server serves the run, and none after it has moved.

A server whose start fails leaves the folder as it was.
"""

import json
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from samara.shared.errors import SamaraError
from samara.shared.storage.files import make_folder, write_secret

SERVER_LOCK = "server.lock"
"""File in a run's folder that the serving process locks."""
_SERVED = "{folder}: another `samara server up` is serving this run; stop it first"
MOVED_FILE = "moved.json"
"""File that marks the folder of a run that has moved to another host."""


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Lock a run's folder against other servers.

    Raises:
        SamaraError: if another process has locked the folder.
    """
    make_folder(folder)
    try:
        lock = FileLock(folder / SERVER_LOCK).acquire(timeout=0)
    except Timeout:
        raise SamaraError(_SERVED.format(folder=folder)) from None
    with lock:
        yield


@contextmanager
def restored_if_not_started(
    folder: Path, own: Collection[str], rewritten: Collection[str], started: Path
) -> Iterator[None]:
    """Restore the files of a run's folder if the block fails before a server process started.

    New files are deleted. A new folder is deleted too, with its new parents. If another command has
    written a file meanwhile, for example an invitation, or another server holds the lock, nothing
    is deleted or restored.

    Args:
        folder: folder of a run; it may be missing.
        own: names that the block writes into the folder.
        rewritten: the names of `own` whose existing files the block may change.
        started: log that a server process begins or continues when it starts.
    """
    kept = {file.name for file in folder.iterdir()} if folder.is_dir() else set[str]()
    contents = {
        file: (file.read_bytes(), file.stat().st_mode)
        for name in rewritten
        for file in (folder / name, *(folder / name).glob("*"))
        if file.is_file()
    }
    new_folders = [each for each in (folder, *folder.parents) if not each.exists()]
    log = _size_of(started)
    try:
        yield
    except BaseException:
        new = {file.name for file in folder.iterdir()} - kept if folder.is_dir() else set[str]()
        unused = new <= {*own, SERVER_LOCK} and _size_of(started) == log
        if unused and not is_locked(folder / SERVER_LOCK):
            for file, (content, mode) in contents.items():
                if file.read_bytes() != content:
                    write_secret(file, content)  # it may be a private key
                    file.chmod(mode)
            for name in new:
                file = folder / name
                shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
            with suppress(OSError):  # if another process has written into a folder
                for each in new_folders:
                    each.rmdir()
        raise


def _size_of(file: Path) -> int | None:
    return file.stat().st_size if file.exists() else None


def check_not_served(folder: Path) -> None:
    """Check that no other process serves a run, before a command writes to the run's folder.

    Raises:
        SamaraError: if another process serves the run.
    """
    if is_locked(folder / SERVER_LOCK):
        raise SamaraError(_SERVED.format(folder=folder))


def is_locked(file: Path) -> bool:
    """Return whether a process holds a lock on a file; the file may be missing."""
    if not file.exists():
        return False
    try:
        with FileLock(file).acquire(timeout=0):
            return False
    except Timeout:
        return True


def check_not_moved(folder: Path) -> None:
    """Check that a run has not moved to another host.

    Raises:
        SamaraError: if the run has moved.
    """
    file = folder / MOVED_FILE
    if not os.path.lexists(file):
        return
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        moved = f"on {content['time']} to {content['file']}"
    except (OSError, ValueError, KeyError, TypeError):
        moved = "to another host"
    raise SamaraError(
        f"{folder}: this run has moved {moved}; serve it from the folder where the backup was "
        "restored, because two servers of one run would write different ledgers. If the backup "
        f"was never restored, delete {file}"
    )
