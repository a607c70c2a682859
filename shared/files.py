"""Files that survive a crash: written beside, fsynced, renamed."""

import os
from pathlib import Path


def write_durably(path: Path, data: bytes) -> None:
    """Write a whole file so that a crash leaves either the old content or the new.

    Raises:
        OSError: if the disk refuses; the old content is untouched then.
    """
    temporary = path.with_name(path.name + ".new")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
