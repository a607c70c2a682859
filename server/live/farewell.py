"""The clients that were told that a run is finished, in a file of the run's folder.

Who is connected when a run ends is told so by the access filter of its SuperLink. Who was away is
told by a later `server up` of the finished run, which serves until nobody is left.
"""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from server.live.keys import ClientKeys
from shared.signing import fingerprint_of

if TYPE_CHECKING:
    from server.live.superlink_process import Node

log = logging.getLogger("samara.server")

TOLD_FILE = "told"
"""Name of the file in a run's folder: fingerprints of public keys, one per line."""
_NAMES_SHOWN = 5
_MOST_TOLD = 100_000
"""Most fingerprints in the file: in a run without keys anybody may come with a new one."""


class ToldClients:
    """The clients that were told that the run is finished.

    Args:
        file: file with their fingerprints, which need not exist.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._fingerprints = file, _read(file)

    def add(self, public_key: bytes) -> None:
        """Note that the holder of a key (PEM) has been told."""
        fingerprint = fingerprint_of(public_key)
        if fingerprint in self._fingerprints or len(self._fingerprints) >= _MOST_TOLD:
            return
        self._fingerprints.add(fingerprint)
        try:
            with self._file.open("a", encoding="ascii") as file:
                file.write(f"{fingerprint}\n")
        except OSError as error:
            log.warning("%s: cannot be written: %s", self._file, error.strerror)


def count_untold(run: Path, nodes: Iterable["Node"]) -> int:
    """Return how many of some nodes have not been told that a run is finished.

    Args:
        run: folder of the run.
        nodes: the nodes.
    """
    told = _read(run / TOLD_FILE)
    return sum(fingerprint_of(node.public_key) not in told for node in nodes)


def find_untold(run: Path, nodes: Iterable["Node"], keys: ClientKeys) -> list[str]:
    """Return the names of the clients that took part in a run and have not heard of its end.

    Args:
        run: folder of the run.
        nodes: nodes that Flower knows of.
        keys: client keys of the run; those that were revoked are not waited for.
    """
    told = _read(run / TOLD_FILE)
    valid = {key.public_key.encode() for key in keys.read_all() if not key.revoked}
    return sorted(
        node.name
        for node in nodes
        if node.was_connected
        and node.public_key in valid
        and fingerprint_of(node.public_key) not in told
    )


def describe_names(names: list[str]) -> str:
    """Return names as a list of which a line has room."""
    more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more


def _read(file: Path) -> set[str]:
    try:
        return set(file.read_text(encoding="ascii", errors="replace").split())
    except FileNotFoundError:
        return set()
    except OSError as error:
        log.warning("%s: cannot be read: %s", file, error.strerror)
        return set()
