"""Files that survive a crash: they are written under another name, fsynced and renamed."""

import os
from pathlib import Path

UNFINISHED = ".new"
"""The suffix of files that are being written, or whose writing a crash interrupted."""


def write_durably(path: Path, *parts: bytes | memoryview) -> None:
    """Write a whole file so that a crash leaves either the old content or the new.

    Raises:
        OSError: if writing fails; the old content is then unchanged, unless only the fsync of the
            folder failed.
    """
    temporary = path.with_name(path.name + UNFINISHED)
    try:
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that the names of its files are on the disk.

    Raises:
        OSError: if the fsync fails.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and fsync their names.

    Raises:
        OSError: if writing fails, or a file of that name exists.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)
