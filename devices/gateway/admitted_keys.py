"""The public keys in a folder, which a gateway admits."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from samara.shared.errors import DeviceError
from samara.shared.protocol.signing import normalize_public_key
from samara.shared.storage.watched_folder import WatchedFolder

log = logging.getLogger("samara.gateway")

SEARCH_SECONDS = 1.0
"""Minimum seconds between two searches of an unchanged folder for an unknown key."""


class AdmittedKeys:
    """The public keys that may attach. They are read again whenever a file in their folder changes.

    Args:
        folder: folder of ``*.pem`` files with one public key each.
        clock: function that returns monotonic seconds.

    Attributes:
        folder: folder of the keys.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self._clock = clock
        self._files = WatchedFolder(folder, ".pem", _read_key)
        self._names: dict[bytes, str] = {}  # file name by key
        self._searched = -SEARCH_SECONDS

    def __call__(self, public_key: bytes) -> bool:
        """Return whether a public key (PEM) is in the folder."""
        name = self._names.get(public_key)
        # The file of another key may have been overwritten with this key.
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
    """Return the key in a file. A damaged file is logged, and the result is empty."""
    try:
        return normalize_public_key(file.read_bytes())
    except (OSError, DeviceError) as error:
        log.warning("%s: this key is not admitted: %s", file, error)
        return b""
