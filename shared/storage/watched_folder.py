"""A folder of small files changed by other processes; only changed files are read again."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

_SETTLED_NANOSECONDS = 1_000_000_000
_Stamp = tuple[int, int, int]
"""Modification time, inode and size of a file; writing changes at least one of them."""
Content = TypeVar("Content")


class WatchedFolder(Generic[Content]):
    """The contents of a folder's files; a file is read again only if it has changed.

    Listing a folder of ten thousand files takes tens of milliseconds. `may_have_changed` is fast,
    because it looks only at the folder and at one file.

    Args:
        folder: the folder; it may be missing.
        suffix: end of the file names.
        read: function that returns the content of a file.
    """

    def __init__(self, folder: Path, suffix: str, read: Callable[[Path], Content]) -> None:
        self._folder, self._suffix, self._read = folder, suffix, read
        self._files: dict[str, tuple[_Stamp, Content]] = {}
        # Modification time of the folder; None if it may change again within the same clock tick.
        self._settled: int | None = None

    def may_have_changed(self, name: str = "") -> bool:
        """Return whether the folder, or the file of this name, has changed since the last search.

        The folder's modification time shows added, replaced and removed files. It does not show
        that a file was written in place, so the named file is checked too.
        """
        if self._settled is None or self._settled != _modification_time(self._folder):
            return True
        return name in self._files and _stamp_of(self._folder / name) != self._files[name][0]

    def search(self) -> Mapping[str, Content]:
        """Read new and changed files; return the contents of all files by name.

        Names are in order. A folder that is missing or unreadable has no files.
        """
        now = time.time_ns()
        modified = _modification_time(self._folder)
        files: dict[str, tuple[_Stamp, Content]] = {}
        for name, stamp in self._stamps():
            stored = self._files.get(name)
            is_same = stored is not None and stored[0] == stamp
            files[name] = stored if stored and is_same else (stamp, self._read(self._folder / name))
        self._files = files
        # File systems count time in ticks, so a folder that changed just now is searched again.
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
                    with suppress(FileNotFoundError):  # removed after the listing
                        found.append((entry.name, _stamp(entry.stat())))
        return sorted(found)


def _modification_time(folder: Path) -> int:
    """Return a folder's modification time in nanoseconds; 0 if it is missing."""
    stamp = _stamp_of(folder)
    return stamp[0] if stamp else 0


def _stamp_of(file: Path) -> _Stamp | None:
    try:
        return _stamp(file.stat())
    except OSError:
        return None


def _stamp(stat: os.stat_result) -> _Stamp:
    return stat.st_mtime_ns, stat.st_ino, stat.st_size
