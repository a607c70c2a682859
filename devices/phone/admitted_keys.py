"""The keys that a gateway admits: those in a folder."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from samara.shared.errors import DeviceError
from samara.shared.signing import normalize_public_key
from samara.shared.watched_folder import WatchedFolder

log = logging.getLogger("samara.gateway")

SEARCH_SECONDS = 1.0
"""Time for which a key that is not in an unchanged folder is not searched for again."""


class AdmittedKeys:
    """The keys that may attach: those in a folder, read again whenever a file changes.

    Args:
        folder: folder of ``*.pem`` files with one public key each.
        clock: monotonic seconds.

    Attributes:
        folder: that folder.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._clock = folder, clock
        self._files = WatchedFolder(folder, ".pem", _read_key)
        self._names: dict[bytes, str] = {}  # of the file with a key
        self._searched = -SEARCH_SECONDS

    def __call__(self, public_key: bytes) -> bool:
        """Return whether a public key (PEM) is in the folder."""
        name = self._names.get(public_key)
        # the key may also have been written into a file of another one
        is_due = name is None and self._clock() >= self._searched + SEARCH_SECONDS
        if is_due or self._files.may_have_changed(name or ""):
            self.read()
        return public_key in self._names

    def read(self) -> set[bytes]:
        """Return the public keys (PEM) in the folder."""
        self._searched = self._clock()
        self._names = {key: name for name, key in self._files.search().items() if key}
        return set(self._names)


def _read_key(file: Path) -> bytes:
    """Return the key in a file; a damaged one is logged, and holds none."""
    try:
        return normalize_public_key(file.read_bytes())
    except (OSError, DeviceError) as error:
        log.warning("%s: key not admitted: %s", file, error)
        return b""
