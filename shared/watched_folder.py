"""A folder of small files that other processes change, read again only where it has changed."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

_SETTLED_NANOSECONDS = 1_000_000_000
_Stamp = tuple[int, int, int]
"""A file's time of modification, inode and size; any of them changes when it is written."""
Content = TypeVar("Content")


class WatchedFolder(Generic[Content]):
    """The contents of a folder's files, each read when it is new or has changed.

    A folder of ten thousand files takes tens of milliseconds to search. So `may_have_changed` looks
    at the folder and at one file only.

    Args:
        folder: the folder, which need not exist.
        suffix: end of the names of the files.
        read: returns the content of a file.
    """

    def __init__(self, folder: Path, suffix: str, read: Callable[[Path], Content]) -> None:
        self._folder, self._suffix, self._read = folder, suffix, read
        self._files: dict[str, tuple[_Stamp, Content]] = {}
        # The folder's time of modification; None where it may change again within the same tick.
        self._settled: int | None = None

    def may_have_changed(self, name: str = "") -> bool:
        """Return whether files were added, replaced or removed since the last search, or this one.

        A file that was written in place changes nothing in its folder: it is noticed by its name.
        """
        if self._settled is None or self._settled != _modification_time(self._folder):
            return True
        return name in self._files and _stamp_of(self._folder / name) != self._files[name][0]

    def search(self) -> Mapping[str, Content]:
        """Read the files that are new or have changed; return the contents of all by their names.

        The names are in order. A folder that does not exist or cannot be read has no files.
        """
        now, modified = time.time_ns(), _modification_time(self._folder)
        files: dict[str, tuple[_Stamp, Content]] = {}
        for name, stamp in self._stamps():
            stored = self._files.get(name)
            is_same = stored is not None and stored[0] == stamp
            files[name] = stored if stored and is_same else (stamp, self._read(self._folder / name))
        self._files = files
        # File systems count time in ticks, so a folder that has just changed is searched again.
        self._settled = modified if modified < now - _SETTLED_NANOSECONDS else None
        return {name: content for name, (_, content) in files.items()}

    def modification_stamp(self) -> int:
        """Return a number that changes whenever a file is added, written or removed."""
        return sum(modified for _, (modified, _, _) in self._stamps())

    def _stamps(self) -> list[tuple[str, _Stamp]]:
        """Return the names of the files, in order, with their stamps."""
        found = []
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(self._suffix):
                    with suppress(FileNotFoundError):  # removed since the folder was listed
                        found.append((entry.name, _stamp(entry.stat())))
        return sorted(found)


def _modification_time(folder: Path) -> int:
    """Return a folder's time of modification in nanoseconds; 0 if it does not exist."""
    stamp = _stamp_of(folder)
    return stamp[0] if stamp else 0


def _stamp_of(file: Path) -> _Stamp | None:
    try:
        return _stamp(file.stat())
    except OSError:
        return None


def _stamp(stat: os.stat_result) -> _Stamp:
    return stat.st_mtime_ns, stat.st_ino, stat.st_size
