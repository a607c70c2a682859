"""Files that survive a crash: written beside, fsynced, renamed."""

import os
from pathlib import Path

UNFINISHED = ".new"
"""Ends the names of files that a crash interrupted."""


def write_durably(path: Path, *parts: bytes | memoryview) -> None:
    """Write a whole file so that a crash leaves either the old content or the new.

    Raises:
        OSError: if the disk refuses; the old content is untouched then, unless it is the
            folder that cannot be fsynced.
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
    """Wait until the names of the files in a folder are on the disk.

    Raises:
        OSError: if the disk refuses.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless they are there, and wait for the disk.

    Raises:
        OSError: if the disk refuses, or a file is in the way.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)
