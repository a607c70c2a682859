"""A run's record of the clients that have been informed of its end."""

import logging
from pathlib import Path

from samara.shared.protocol.signing import fingerprint_of

log = logging.getLogger("samara.server")

TOLD_FILE = "told"
"""File in a run's folder: one fingerprint of a public key per line."""
_MOST_TOLD = 100_000
"""Maximum number of fingerprints in the file; without keys, strangers could add any number."""


class ToldClients:
    """The clients that have been informed that the run is finished.

    Args:
        file: file with the fingerprints of these clients' keys; it may be missing.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._fingerprints = file, _read(file)

    def __contains__(self, public_key: bytes) -> bool:
        """Return whether the holder of a key (PEM) has been informed of the run's end."""
        return fingerprint_of(public_key) in self._fingerprints

    def add(self, public_key: bytes) -> None:
        """Record that the holder of a key (PEM) has been informed of the run's end."""
        fingerprint = fingerprint_of(public_key)
        if fingerprint in self._fingerprints or len(self._fingerprints) >= _MOST_TOLD:
            return
        self._fingerprints.add(fingerprint)
        try:
            with self._file.open("a", encoding="ascii") as file:
                file.write(f"{fingerprint}\n")
        except OSError as error:
            log.warning("%s: cannot be written: %s", self._file, error.strerror)


def _read(file: Path) -> set[str]:
    try:
        return set(file.read_text(encoding="ascii", errors="replace").split())
    except FileNotFoundError:
        return set()
    except OSError as error:
        log.warning("%s: cannot be read: %s", file, error.strerror)
        return set()
