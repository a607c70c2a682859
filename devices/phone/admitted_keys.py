"""The keys that a gateway admits: those in a folder."""

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from shared.errors import DeviceError
from shared.signing import normalize_public_key

log = logging.getLogger("samara.gateway")


class AdmittedKeys:
    """The keys that may attach: those in a folder, read again whenever a file changes.

    Args:
        folder: folder of ``*.pem`` files with one public key each.

    Attributes:
        folder: that folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stamps: set[tuple[str, int, int]] = set()
        self._keys: set[bytes] = set()

    def __call__(self, public_key: bytes) -> bool:
        """Return whether a public key (PEM) is in the folder."""
        return public_key in self.read()

    def read(self) -> set[bytes]:
        """Return the public keys (PEM) in the folder."""
        if self._stamps != (stamps := self._read_stamps()):
            self._stamps, self._keys = stamps, set(_read_keys(path for path, _, _ in stamps))
        return self._keys

    def _read_stamps(self) -> set[tuple[str, int, int]]:
        """Return path, time of change in nanoseconds and size of each file."""
        stamps = set()
        with suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(".pem"):
                    with suppress(FileNotFoundError):  # removed since the folder was listed
                        stat = entry.stat()
                        stamps.add((entry.path, stat.st_mtime_ns, stat.st_size))
        return stamps


def _read_keys(files: Iterable[str]) -> Iterator[bytes]:
    """Yield the keys in files; a damaged file is logged and skipped."""
    for file in files:
        try:
            yield normalize_public_key(Path(file).read_bytes())
        except (OSError, DeviceError) as error:
            log.warning("%s: key not admitted: %s", file, error)
