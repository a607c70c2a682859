"""The sampling of cohorts: a pure function of the round, whose key clients of a live run never see.

A client's index follows from its own key, of which it may make as many as it likes. Were the cohort
a function of index and public seed, clients could make keys that are picked often, or in one round.
A live server draws a secret once, and keeps it in the folder of each ledger and in its backups. A
simulation has no strangers: its cohorts follow from its seed. So do those of a live run that was
begun before there were secrets (docs/decisions/0042).
"""

import hashlib
import logging
import math
import secrets
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samara.server.rounds.clusters import cluster_folder
from samara.server.store import LEDGER_FOLDER
from samara.shared.config import RunConfig
from samara.shared.directions import cohort_keys
from samara.shared.errors import LedgerError
from samara.shared.files import write_secret
from samara.shared.kept_file import KeptFile

log = logging.getLogger("samara.server")

COHORT_SECRET_FILE = "cohort.secret"
"""Name of the file beside a ledger."""
SECRET_BYTES = 32
_PLACE = struct.Struct("<II")
_NUMBER_BYTES = 8


class _CohortSecretFile(KeptFile[bytes]):
    """The secret of a run or of a cluster, 32 bytes; empty if it has none."""

    name = COHORT_SECRET_FILE
    error = LedgerError
    empty = bytes
    damaged = (
        "{file}: {problem}; without it the run would ask other clients than before. Copy it from a "
        "backup (samara server restore into another folder)"
    )

    def _put(self, path: Path, data: bytes) -> None:
        write_secret(path, data)

    def _encode(self, content: bytes) -> bytes:
        return content

    def _decode(self, data: bytes) -> bytes:
        if len(data) != SECRET_BYTES:
            raise ValueError(f"it has {len(data)} bytes in place of {SECRET_BYTES}")
        return data


def read_cohort_secret(store: Path) -> bytes:
    """Return the secret beside a ledger, 32 bytes; empty if it has none.

    Args:
        store: folder of a run, or of one of its clusters.

    Raises:
        LedgerError: if it is damaged or cannot be read.
    """
    return _CohortSecretFile(store).read()


def draw_cohort_secrets(run: Path, config: RunConfig) -> None:
    """Draw the secrets of a live run that has no ledger yet; they are on the disk when this ends.

    Args:
        run: folder of the run.
        config: settings of the run.

    Raises:
        LedgerError: if one is damaged or cannot be written.
    """
    clusters = range(config.cohort.clusters) if config.method == "cluster" else ()
    for store in [cluster_folder(run, cluster) for cluster in clusters] or [run]:
        file = _CohortSecretFile(store)
        if file.read():
            continue
        if not (store / LEDGER_FOLDER).exists():
            file.write(secrets.token_bytes(SECRET_BYTES))
        elif config.cohort.fraction < 1:
            log.warning("%s: there is none; cohorts follow from the public seed", file.path)


def sample_cohort(
    key: int | bytes, round_number: int, clients: Iterable[int], fraction: float, minimum: int
) -> list[int]:
    """Return the cohort of a round.

    A number is derived for every client from the key, the round and the client index, and the
    clients with the smallest numbers are picked. So one connected client more or less changes at
    most one client of the cohort.

    Args:
        key: the secret of a live run; the seed of a run without one.
        round_number: number of the round.
        clients: indices of the clients to choose from.
        fraction: share of them to pick, rounded up.
        minimum: fewest clients to pick, if there are so many.

    Returns:
        Client indices, ascending.
    """
    candidates = np.array(sorted(set(clients)), np.uint32)
    size = min(len(candidates), max(minimum, math.ceil(round(fraction * len(candidates), 9))))
    if isinstance(key, bytes):
        numbers = _keyed_numbers(key, round_number, candidates)
    else:
        numbers = cohort_keys(key, round_number, candidates)
    order = np.argsort(numbers, kind="stable")
    return sorted(int(client) for client in candidates[order[:size]])


def _keyed_numbers(
    secret: bytes, round_number: int, clients: NDArray[np.uint32]
) -> NDArray[np.uint64]:
    """Return one number per client for a round, uint64 [n]: keyed BLAKE2b of round and index."""
    hashes = [
        hashlib.blake2b(_PLACE.pack(round_number, client), digest_size=_NUMBER_BYTES, key=secret)
        for client in clients.tolist()
    ]
    return np.frombuffer(b"".join(each.digest() for each in hashes), "<u8").astype(np.uint64)
