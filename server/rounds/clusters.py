"""The clusters of a run and their members.

OUT/clusters.json   each client's cluster and scalars
OUT/layout.json     layout of the scalars
OUT/metrics.jsonl   merged rounds and evaluations of the clusters
OUT/cluster-1/ …    one run folder per cluster, without a result

Each cluster has its own run id, ledger and state. A cluster is replayed and verified like a run,
and a client needs only its cluster's ledger.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from samara.server.rounds.clustering import cluster_clients, nearest_cluster
from samara.shared.errors import LedgerError
from samara.shared.storage.files import write_durably

ASSIGNMENTS_FILE = "clusters.json"


def cluster_folder(run: Path, cluster: int) -> Path:
    """Return the folder of a run's cluster; clusters are numbered from 0."""
    return run / f"cluster-{cluster + 1}"


@dataclass
class ClusterAssignments:
    """The cluster of each client, and the projected gradients that decided the cluster.

    Attributes:
        clusters: cluster of each client, numbered from 0.
        scalars: projected gradients of each client along the same directions, float64
            [steps, queries].
        bytes_up, bytes_down: bytes of the replies and messages that carried the scalars.
    """

    clusters: dict[int, int] = field(default_factory=dict)
    scalars: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a file written by `write`; return empty assignments if the file is missing.

        Raises:
            LedgerError: if the file is damaged.
        """
        if not file.exists():
            return cls()
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            return cls(
                {int(client): int(cluster) for client, cluster in content["clusters"].items()},
                {int(c): np.array(rows, np.float64) for c, rows in content["scalars"].items()},
                int(content["bytes_up"]),
                int(content["bytes_down"]),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LedgerError(f"{file}: damaged: {error!r}; copy the file from a backup") from error

    def write(self, file: Path) -> None:
        """Write the assignments durably.

        Raises:
            LedgerError: if the file cannot be written.
        """
        content = {
            "clusters": self.clusters,
            "scalars": {client: rows.tolist() for client, rows in self.scalars.items()},
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
        }
        try:
            write_durably(file, (json.dumps(content, indent=1) + "\n").encode())
        except OSError as error:
            raise LedgerError(f"{file}: cannot be written: {error.strerror}") from error

    def assign(
        self,
        scalars: Mapping[int, NDArray[np.float64]],
        clusters: int,
        newcomers: Collection[int],
    ) -> None:
        """Assign clients to clusters by their scalars.

        The training clients of the first call form the clusters. Newcomers and the clients of later
        calls join the cluster with the most similar scalars.

        Args:
            scalars: projected gradients of each client without a cluster, float64
                [steps, queries].
            clusters: number of clusters to form.
            newcomers: clients that never train.
        """
        self.scalars |= scalars
        if not self.clusters:
            training = {c: rows for c, rows in self.scalars.items() if c not in newcomers}
            self.clusters |= cluster_clients(training, clusters)
        if self.clusters:
            for client in sorted(self.scalars.keys() - self.clusters.keys()):
                cluster = nearest_cluster(self.scalars[client], self.scalars, self.clusters)
                self.clusters[client] = cluster

    def members(self, cluster: int) -> list[int]:
        """Return the clients of a cluster, ascending."""
        return sorted(client for client, c in self.clusters.items() if c == cluster)
