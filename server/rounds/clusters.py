"""Clients in clusters: who belongs together is found by scalars, and each cluster is a federation.

OUT/groups.json     by client, its cluster and the scalars by which it was found
OUT/layout.json     what the scalars mean
OUT/metrics.jsonl   the clusters' rounds and evaluations, put together
OUT/cluster-1/ …    of every cluster what the folder of a run holds, but for the result

A cluster has an id, a ledger and a state of its own, so every one of them replays and is verified
like any other run, and a client needs only its own.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from server.rounds.aggregation import check_report
from server.rounds.clustering import cluster_clients, nearest_cluster
from server.rounds.evaluation import merge_histories
from server.rounds.strategy import ScalarStrategy
from server.store import METRICS_FILE, RunStore, ensure_layout
from server.transport.messages import make_message, read_frame
from server.transport.roster import Roster, RosterEntry
from shared.config import RunConfig
from shared.directions import round_root
from shared.errors import LedgerError, SamaraError
from shared.events import append_event
from shared.files import write_durably
from shared.frames.instructions import (
    CLUSTERING_TRACK,
    GLOBAL_TRACK,
    SeedPolicy,
    Split,
    TrainInstruction,
)
from shared.frames.report import Report
from shared.layout import Layout
from shared.ledger.catch_up import CatchUp
from shared.ledger.records import LedgerHeader
from shared.replay import digest, zero_state

log = logging.getLogger("samara.server")

ASSIGNMENTS_FILE = "groups.json"
STEPS, DIRECTIONS = 8, 64
"""At least so many steps find clusters, in which labels take turns, and so many directions."""


def cluster_folder(run: Path, cluster: int) -> Path:
    """Where the ledger of a cluster lies, counted from 0."""
    return run / f"cluster-{cluster + 1}"


def cluster_id(run_id: bytes, cluster: int) -> bytes:
    """8 bytes that name a cluster of a run."""
    return hashlib.sha256(run_id + cluster.to_bytes(4, "little")).digest()[:8]


def clustering_steps_and_batch(config: RunConfig) -> tuple[int, int]:
    """Steps and batch of the scalars that find clusters, within as many losses as rounds take.

    What a client says of a direction is mostly the noise of its batch: so the budget goes into
    large batches and not into more directions. Differences are forward: half the losses.

    Args:
        config: whose clustering rounds are the budget.
    """
    queries, settings = config.queries, config.cohort
    of_step = queries + 1 if config.differences == "forward" else 2 * queries
    losses = settings.clustering_rounds * config.steps * config.batch * of_step
    steps = min(max(STEPS, -(-DIRECTIONS // queries)), losses // (queries + 1))
    return steps, losses // (steps * (queries + 1))


def clustering_instruction(
    config: RunConfig, run_id: bytes, layout_hash: bytes, start: bytes
) -> TrainInstruction:
    """What clients are asked so that clusters are found.

    Args:
        config: of the run.
        run_id: of the run, 8 bytes.
        layout_hash: of the adapter, 32 bytes.
        start: digest of the base's state, 32 bytes.
    """
    steps, batch = clustering_steps_and_batch(config)
    return TrainInstruction(
        run_id=run_id,
        round=1,
        track=CLUSTERING_TRACK,
        steps=steps,
        queries=config.queries,
        batch=batch,
        seed_policy=SeedPolicy.SHARED,
        root=round_root(config.seed, 0, CLUSTERING_TRACK),
        epsilon=config.epsilon,
        learning_rate=0.0,
        clip=config.clip,
        deadline=config.cohort.timeout,
        layout_hash=layout_hash,
        start_digest=start,
        differences="forward",
    )


@dataclass
class ClusterAssignments:
    """Who belongs to which cluster, and why.

    Attributes:
        clusters: by client, counted from 0.
        scalars: by client, float64 [steps, queries], along the same directions for all.
        bytes_up, bytes_down: what finding the clusters took.
    """

    clusters: dict[int, int] = field(default_factory=dict)
    scalars: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0

    @classmethod
    def read(cls, file: Path) -> Self:
        """What `write` wrote; nobody is in a cluster if there is no file.

        Raises:
            LedgerError: if it is damaged.
        """
        if not file.exists():
            return cls()
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            return cls(
                {int(client): int(cluster) for client, cluster in content["clusters"].items()},
                {int(d): np.array(own, np.float64) for d, own in content["scalars"].items()},
                int(content["bytes_up"]),
                int(content["bytes_down"]),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LedgerError(f"{file}: damaged: {error!r}; restore it") from error

    def write(self, file: Path) -> None:
        """Keep them; on the disk when this returns.

        Raises:
            LedgerError: if the disk refuses.
        """
        content = {
            "clusters": self.clusters,
            "scalars": {client: own.tolist() for client, own in self.scalars.items()},
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
        }
        try:
            write_durably(file, (json.dumps(content, indent=1) + "\n").encode())
        except OSError as error:
            raise LedgerError(f"{file}: cannot be written: {error.strerror}") from error


class _Part(Roster):
    """The clients of one cluster, as its strategy sees them; the whole roster knows them."""

    def __init__(self, whole: Roster, groups: ClusterAssignments, cluster: int) -> None:
        self._whole, self._groups, self._cluster = whole, groups, cluster

    @property
    def entries(self) -> dict[int, RosterEntry]:  # type: ignore[override]
        """Of this cluster, by Flower node id."""
        clusters = self._groups.clusters
        return {
            node: entry
            for node, entry in self._whole.entries.items()
            if clusters.get(entry.client) == self._cluster
        }

    def request_hellos(self, grid: Grid, timeout: float) -> None:
        """Ask every node that has not introduced itself to do so."""
        self._whole.request_hellos(grid, timeout)

    def refusal_reason(self, entry: RosterEntry) -> str:
        """Why an entry may no longer take part; empty if it may."""
        return self._whole.refusal_reason(entry)


class ClusteredStrategy(Strategy):
    """A federation per cluster, side by side; every client's messages go to its own."""

    def __init__(
        self, config: RunConfig, folder: Path, layout: Layout, run_id: bytes, roster: Roster
    ) -> None:
        """Prepare for the rounds after the ledgers' last.

        Args:
            config: of the run.
            folder: of the run.
            layout: of the adapter.
            run_id: of the run, 8 bytes.
            roster: its clients.

        Raises:
            LedgerError: if the folder holds another run, or a damaged one.
        """
        ensure_layout(folder, layout)
        self._config, self._folder, self._layout = config, folder, layout
        self._run_id, self._roster = run_id, roster
        self.groups = ClusterAssignments.read(folder / ASSIGNMENTS_FILE)
        rounds = config.federated_rounds - config.cohort.clustering_rounds
        own = {"method": "global", "rounds": rounds, "personal.rounds": 0}
        self._own = RunConfig.of(config.flat() | own, "cluster")
        self._parts: list[ScalarStrategy] = []
        self._stores: list[RunStore] = []
        self._asked: list[ScalarStrategy] = []
        try:
            for cluster in range(config.cohort.clusters):
                header = LedgerHeader(GLOBAL_TRACK, cluster_id(run_id, cluster), layout.hash)
                place, every = cluster_folder(folder, cluster), config.ledger.snapshot_every
                self._stores.append(RunStore(place, layout, header, every))
                part = _Part(roster, self.groups, cluster)
                self._parts.append(ScalarStrategy(self._own, self._stores[-1], part))
        except SamaraError:
            self.close()
            raise

    @property
    def rounds(self) -> int:
        """Of each cluster's federation."""
        return self._own.federated_rounds

    @property
    def round(self) -> int:
        """The last one that every cluster has."""
        return min(store.ledger.position.round for store in self._stores)

    @property
    def digest(self) -> bytes:
        """Of all states: SHA-256 of theirs, 32 bytes."""
        return hashlib.sha256(b"".join(store.ledger.digest for store in self._stores)).digest()

    def events(self) -> list[dict[str, Any]]:
        """The clusters' rounds and evaluations, put together."""
        return merge_histories([store.events() for store in self._stores])

    def find(self, grid: Grid) -> None:
        """Ask clients that are in no cluster for scalars along common directions, and place them.

        The first who are there make the groups, those who never train apart; who comes later joins
        the one that agrees with it best.
        """
        self._roster.request_hellos(grid, self._config.cohort.timeout)
        new = [m for m in self._roster.entries.values() if m.client not in self.groups.clusters]
        if not new:
            return
        groups, found = self.groups, self._scalars(new, grid)
        groups.scalars |= found
        if not groups.clusters:
            training = {d: s for d, s in found.items() if d not in self._config.newcomers}
            groups.clusters |= cluster_clients(training, self._config.cohort.clusters)
        for client in sorted(found.keys() - groups.clusters.keys()):
            groups.clusters[client] = nearest_cluster(
                found[client], groups.scalars, groups.clusters
            )
        groups.write(self._folder / ASSIGNMENTS_FILE)
        for cluster in range(self._config.cohort.clusters):
            clients = sorted(d for d, own in groups.clusters.items() if own == cluster)
            log.info("cluster %d: clients %s", cluster + 1, ", ".join(map(str, clients)))

    def _scalars(
        self, entries: Sequence[RosterEntry], grid: Grid
    ) -> dict[int, NDArray[np.float64]]:
        """What these clients answer, by client; who does not answer soundly stays without."""
        settings, layout = self._config, self._layout
        start = digest(layout.hash, zero_state(layout.size))
        instruction = clustering_instruction(settings, self._run_id, layout.hash, start)
        frame, seconds = instruction.encode(), settings.cohort.timeout
        messages = [
            make_message(entry.node, MessageType.TRAIN, "groups", frame, CatchUp(), seconds)
            for entry in entries
        ]
        self.groups.bytes_down += len(frame) * len(messages)
        found = {}
        for reply in grid.send_and_receive(messages, timeout=seconds):
            entry = self._roster.entries.get(reply.metadata.src_node_id)
            if entry is None:
                continue
            try:
                answer = read_frame(reply)
                self.groups.bytes_up += len(answer)
                report = Report.decode(answer)
                if report.client != entry.client:
                    raise SamaraError(f"it answers as client {report.client}")
                check_report(report, instruction)
                found[entry.client] = instruction.clipped(report.gradients).astype(np.float64)
            except SamaraError as error:
                log.warning("client %d: %s", entry.client, error)
        return found

    def summary(self) -> None:
        """Log what the strategy will do."""
        for part in self._parts:
            part.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of every cluster that is not ahead of the others."""
        self.find(grid)
        stores = zip(self._parts, self._stores, strict=True)
        behind = self.round
        self._asked = [p for p, store in stores if store.ledger.position.round == behind]
        return [
            message
            for part in self._asked
            for message in part.configure_train(server_round, arrays, config, grid)
        ]

    def has_enough(self, replies: Sequence[Message]) -> bool:
        """Whether no cluster need wait for more replies."""
        return bool(self._asked) and all(part.has_enough(replies) for part in self._asked)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Every cluster folds its own."""
        held = list(replies)
        for part in self._asked:
            part.aggregate_train(server_round, self._of(part, held))
        self._note()
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of every cluster."""
        return [
            message
            for part in self._asked
            for message in part.configure_evaluate(server_round, arrays, config, grid)
        ]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Every cluster sums up its own."""
        held = list(replies)
        for part in self._asked:
            part.aggregate_evaluate(server_round, self._of(part, held))
        if held:
            self._note()
        return None

    def evaluate(self, grid: Grid, split: Split, action: str = "") -> None:
        """Have everybody evaluate the present state of its cluster on a split."""
        for part in self._parts:
            part.evaluate(grid, split, action)
        self._note()

    def return_to_best(self) -> None:
        """Every cluster to its own best validated round, if that is wanted."""
        for part in self._parts:
            part.return_to_best()

    def _of(self, part: ScalarStrategy, replies: Sequence[Message]) -> list[Message]:
        nodes = part.nodes
        return [reply for reply in replies if reply.metadata.src_node_id in nodes]

    def _note(self) -> None:
        """Append what the clusters told just now to the metrics of the run, for whoever watches."""
        for event in merge_histories([[store.last] for store in self._stores if store.last]):
            try:
                append_event(self._folder / METRICS_FILE, event)
            except OSError as error:
                raise LedgerError(
                    f"{self._folder / METRICS_FILE}: cannot be written: {error.strerror}; make "
                    "room, then run the same command"
                ) from error
        for store in self._stores:
            store.last = {}

    def close(self) -> None:
        """Close the ledgers."""
        for store in self._stores:
            store.close()
