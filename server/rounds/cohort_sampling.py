"""Sampling of cohorts, as a pure function of the round and a key; live runs keep the key secret.

The index of a live client follows from its device key, and a device can create any number of device
keys. If the cohort were a function of the index and a public seed, a device could choose a device
key that is sampled often or in a certain round. A live server therefore draws a secret once, and
stores it beside each ledger and in backups. A simulation has no strangers and samples its cohorts
with the run's seed. Live runs that began before this secret existed also use the seed
(docs/decisions/0042).
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
from samara.shared.errors import LedgerError
from samara.shared.protocol.directions import cohort_keys
from samara.shared.settings.config import RunConfig
from samara.shared.storage.files import write_secret
from samara.shared.storage.kept_file import KeptFile

log = logging.getLogger("samara.server")

COHORT_SECRET_FILE = "cohort.secret"
"""Name of the secret's file, beside a ledger."""
SECRET_BYTES = 32
_PLACE = struct.Struct("<II")
_NUMBER_BYTES = 8


class _CohortSecretFile(KeptFile[bytes]):
    """The file with the secret of a run or a cluster, 32 bytes; empty content if there is none."""

    name = COHORT_SECRET_FILE
    error = LedgerError
    empty = bytes
    damaged = (
        "{file}: {problem}; without this secret, the run would sample different cohorts. Restore a "
        "backup into another folder (samara server restore), and copy the file from there"
    )

    def _put(self, path: Path, data: bytes) -> None:
        write_secret(path, data)

    def _encode(self, content: bytes) -> bytes:
        return content

    def _decode(self, data: bytes) -> bytes:
        if len(data) != SECRET_BYTES:
            raise ValueError(f"the file has {len(data)} bytes, not {SECRET_BYTES}")
        return data


def read_cohort_secret(store: Path) -> bytes:
    """Return the secret beside a ledger, 32 bytes; empty if there is none.

    Args:
        store: folder of a run or of one of its clusters.

    Raises:
        LedgerError: if the file is damaged or cannot be read.
    """
    return _CohortSecretFile(store).read()


def draw_cohort_secrets(run: Path, config: RunConfig) -> None:
    """Draw the secrets of a live run that has no ledger yet, and write them durably.

    Args:
        run: folder of the run.
        config: settings of the run.

    Raises:
        LedgerError: if a secret's file is damaged or cannot be written.
    """
    clusters = range(config.cohort.clusters) if config.method == "cluster" else ()
    for store in [cluster_folder(run, cluster) for cluster in clusters] or [run]:
        file = _CohortSecretFile(store)
        if file.read():
            continue
        if not (store / LEDGER_FOLDER).exists():
            file.write(secrets.token_bytes(SECRET_BYTES))
        elif config.cohort.fraction < 1:
            log.warning("%s: does not exist; cohorts are sampled by the public seed", file.path)


def sample_cohort(
    key: int | bytes, round_number: int, clients: Iterable[int], fraction: float, minimum: int
) -> list[int]:
    """Return the cohort of a round.

    Each client gets a number that depends on the key, the round and the client index. The clients
    with the smallest numbers form the cohort. When a client connects or disconnects, at most one
    member of the cohort therefore changes.

    Args:
        key: the secret of a live run, or the seed of a run without a secret.
        round_number: number of the round.
        clients: indices of the available clients.
        fraction: share of the available clients that form the cohort, rounded up.
        minimum: minimum size of the cohort, if there are enough clients.

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
    """Return one number per client, uint64 [n]: keyed BLAKE2b of the round and the client index."""
    hashes = [
        hashlib.blake2b(_PLACE.pack(round_number, client), digest_size=_NUMBER_BYTES, key=secret)
        for client in clients.tolist()
    ]
    return np.frombuffer(b"".join(each.digest() for each in hashes), "<u8").astype(np.uint64)
