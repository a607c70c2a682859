"""The strategy of method `cluster`, which runs one federation per cluster at the same time."""

import hashlib
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from samara.server.rounds.aggregation import check_report
from samara.server.rounds.clusters import (
    ASSIGNMENTS_FILE,
    ClusterAssignments,
    cluster_folder,
)
from samara.server.rounds.evaluation import merge_histories
from samara.server.rounds.event_log import count_scalars, write_event
from samara.server.rounds.planner import ClientHealth
from samara.server.rounds.strategy import ScalarStrategy
from samara.server.store import METRICS_FILE, RunStore, ensure_layout
from samara.server.transport.messages import decode_foreign, make_message, read_frame, report_token
from samara.server.transport.roster import Roster, RosterEntry
from samara.shared.errors import SamaraError
from samara.shared.privacy.scalar_ratio import summarize_scalar_ratios
from samara.shared.protocol.frames.instructions import GLOBAL_TRACK, Split, token_of
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.ledger.records import CatchUp, LedgerHeader
from samara.shared.protocol.replay import digest, zero_state
from samara.shared.protocol.run_id import cluster_id
from samara.shared.settings.config import RunConfig

log = logging.getLogger("samara.server")


class _ClusterRoster(Roster):
    """A view of the roster that contains only the clients of one cluster."""

    def __init__(
        self, whole: Roster, assignments: ClusterAssignments, cluster: int, config: RunConfig
    ) -> None:
        self._whole, self._assignments, self._cluster = whole, assignments, cluster
        self._newcomers = config.newcomers

    @property
    def entries(self) -> dict[int, RosterEntry]:  # type: ignore[override]
        """The clients of this cluster, by Flower node id."""
        clusters = self._assignments.clusters
        return {
            node: entry
            for node, entry in self._whole.entries.items()
            if clusters.get(entry.client) == self._cluster
        }

    @property
    def most_clients(self) -> int:  # type: ignore[override]
        """The number of training clients of this cluster, connected or not."""
        members = self._assignments.members(self._cluster)
        return sum(client not in self._newcomers for client in members)

    def request_hellos(self, grid: Grid, timeout: float) -> None:
        """Request a hello from every node that has not sent a hello."""
        self._whole.request_hellos(grid, timeout)

    def refusal_reason(self, entry: RosterEntry) -> str:
        """Return the reason why a client may no longer take part; empty if it may."""
        return self._whole.refusal_reason(entry)


class ClusteredStrategy(Strategy):
    """A strategy that trains all clusters at the same time and sends their messages together.

    Args:
        config: settings of the run.
        folder: folder of the run; training continues after the last round of its ledgers.
        layout: layout of the adapter.
        run_id: id of the run, 8 bytes.
        roster: clients of the run.

    Raises:
        LedgerError: if the folder holds another run, or is damaged.
    """

    def __init__(
        self, config: RunConfig, folder: Path, layout: Layout, run_id: bytes, roster: Roster
    ) -> None:
        ensure_layout(folder, layout)
        self._config, self._folder, self._roster = config, folder, roster
        self._assignments = ClusterAssignments.read(folder / ASSIGNMENTS_FILE)
        terms = config.terms
        start = digest(layout.hash, zero_state(layout.size))
        self._instruction = terms.clustering_instruction(run_id, layout.hash, start)
        self._clustering_token = token_of(self._instruction.encode())
        self._clustering_health = ClientHealth(config.cohort.patience)
        self._requested: list[RosterEntry] = []
        rounds = terms.rounds_of_federation
        cluster_settings = {"method": "global", "rounds": rounds, "personal.rounds": 0}
        self._cluster_config = RunConfig.of(config.flat() | cluster_settings, "cluster")
        self._strategies: list[ScalarStrategy] = []
        self._stores: list[RunStore] = []
        self._active: list[ScalarStrategy] = []
        try:
            for cluster in range(config.cohort.clusters):
                header = LedgerHeader(GLOBAL_TRACK, cluster_id(run_id, cluster), layout.hash)
                every = config.ledger.snapshot_every
                store = RunStore(cluster_folder(folder, cluster), layout, header, every)
                self._stores.append(store)
                members = _ClusterRoster(roster, self._assignments, cluster, config)
                self._strategies.append(ScalarStrategy(self._cluster_config, store, members))
        except SamaraError:
            self.close()
            raise

    @property
    def round(self) -> int:
        """The last round that all clusters have finished."""
        return min(strategy.round for strategy in self._strategies)

    @property
    def rounds(self) -> int:
        """The number of rounds of each cluster's federation."""
        return self._cluster_config.federated_rounds

    def events(self) -> list[dict[str, Any]]:
        """Return the events of the clusters, merged into one list of rounds and evaluations."""
        return merge_histories([store.events() for store in self._stores])

    def complete_result(self, result: dict[str, Any]) -> dict[str, Any]:
        """Add the clusters' end state, members, bytes and scalars to the run's result.

        The final digest is the SHA-256 of the clusters' digests.
        """
        digests = b"".join(store.ledger.digest for store in self._stores)
        clusters = sorted(self._assignments.clusters.items())
        scalars = count_scalars(result["rounds"])
        scalars.update({client: sent.size for client, sent in self._assignments.scalars.items()})
        return result | {
            "scalar_ratios": summarize_scalar_ratios(scalars, result["elements"]),
            "final_round": self.round,
            "final_digest": hashlib.sha256(digests).hexdigest(),
            "groups": {str(client): cluster for client, cluster in clusters},
            "bytes_up": result["bytes_up"] + self._assignments.bytes_up,
            "bytes_down": result["bytes_down"] + self._assignments.bytes_down,
        }

    def assign_clients(self, grid: Grid) -> None:
        """Request the scalars of all clients without a cluster, and assign the clients to clusters.

        Later rounds repeat the request to clients that have not answered, without waiting for their
        scalars.
        """
        messages = self._request_scalars(grid)
        if messages:
            timeout = self._config.cohort.timeout
            self._assign(list(grid.send_and_receive(messages, timeout=timeout)))

    def _request_scalars(self, grid: Grid) -> list[Message]:
        """Return messages with the clustering instruction to clients without a cluster.

        Clients that rest after repeated failures do not get a message.
        """
        seconds = self._config.cohort.timeout
        self._roster.request_hellos(grid, seconds)
        self._requested = [
            entry
            for entry in self._roster.entries.values()
            if entry.client not in self._assignments.clusters
            and not self._clustering_health.is_resting(entry.client, self.round + 1)
        ]
        frame = self._instruction.encode()
        self._assignments.bytes_down += len(frame) * len(self._requested)
        return [
            make_message(entry.node, MessageType.TRAIN, "clustering", frame, CatchUp(), seconds)
            for entry in self._requested
        ]

    def _assign(self, replies: Sequence[Message]) -> None:
        """Assign the clients with valid replies to clusters, and write the assignments to disk."""
        scalars = self._read_scalars(replies)
        for entry in self._requested:
            if entry.client not in scalars:
                self._clustering_health.record_failure(entry.client, self.round)
        if not self._requested and not scalars:
            return
        self._requested = []
        clusters = self._config.cohort.clusters
        self._assignments.assign(scalars, clusters, self._config.newcomers)
        self._assignments.write(self._folder / ASSIGNMENTS_FILE)
        if scalars:
            for cluster in range(clusters):
                members = ", ".join(map(str, self._assignments.members(cluster)))
                log.info("cluster %d: clients %s", cluster + 1, members)

    def _read_scalars(self, replies: Sequence[Message]) -> dict[int, NDArray[np.float64]]:
        """Return the scalars in valid replies of clients without a cluster, by client."""
        scalars = {}
        for reply in replies:
            entry = self._roster.entries.get(reply.metadata.src_node_id)
            if entry is None or entry.client in self._assignments.clusters:
                continue
            try:
                frame = read_frame(reply)
                self._assignments.bytes_up += len(frame)
                report = decode_foreign(Report.decode, frame)
                if report.client != entry.client:
                    raise SamaraError(f"its report names client {report.client}")
                check_report(report, self._instruction)
                rows = self._instruction.clipped(report.gradients).astype(np.float64)
                scalars[entry.client] = rows
            except SamaraError as error:
                log.warning("client %d: %s", entry.client, error)
        return scalars

    def summary(self) -> None:
        """Log the settings of every cluster's federation."""
        for strategy in self._strategies:
            strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Begin a round of the clusters that have finished the fewest rounds; return all messages.

        Clients without a cluster receive the clustering instruction.
        """
        clustering = self._request_scalars(grid)
        behind = self.round
        self._active = [strategy for strategy in self._strategies if strategy.round == behind]
        training = [
            message
            for strategy in self._active
            for message in strategy.configure_train(server_round, arrays, config, grid)
        ]
        return training + clustering

    def has_enough(self, replies: Sequence[Message]) -> bool:
        """Return whether every cluster has enough replies."""
        asking = [strategy for strategy in self._active if not strategy.asks_nobody]
        return bool(asking) and all(strategy.has_enough(replies) for strategy in asking)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate every cluster's reports, and assign the clients whose scalars have arrived."""
        training: list[Message] = []
        clustering: list[Message] = []
        for reply in replies:
            is_scalars = report_token(reply) == self._clustering_token
            (clustering if is_scalars or self._has_no_cluster(reply) else training).append(reply)
        for strategy in self._active:
            strategy.aggregate_train(server_round, _replies_of(strategy, training))
        self._assign(clustering)
        self._record_merged()
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of every cluster's validation."""
        return [
            message
            for strategy in self._active
            for message in strategy.configure_evaluate(server_round, arrays, config, grid)
        ]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """End the round of every cluster with the replies to that cluster's validation."""
        messages = list(replies)
        for strategy in self._active:
            strategy.aggregate_evaluate(server_round, _replies_of(strategy, messages))
        self._record_merged()
        return None

    def evaluate_missing(self, grid: Grid, splits: Sequence[Split]) -> None:
        """Run the evaluations that are due before the next round and have no record yet."""
        for split in splits:
            for strategy in self._strategies:
                if split in strategy.missing_evaluations(splits):
                    strategy.evaluate(grid, split)
            self._record_merged()

    def evaluate(self, grid: Grid, split: Split, action: str = "") -> None:
        """Evaluate every cluster's current state on a split of all its connected clients."""
        for strategy in self._strategies:
            strategy.evaluate(grid, split, action)
        self._record_merged()

    def return_to_best(self) -> None:
        """Revert every cluster to its best validated round if `evaluate.best` is set."""
        for strategy in self._strategies:
            strategy.return_to_best(always=True)
        self._record_merged()

    def close(self) -> None:
        """Close the ledgers."""
        for store in self._stores:
            store.close()

    def _has_no_cluster(self, reply: Message) -> bool:
        entry = self._roster.entries.get(reply.metadata.src_node_id)
        return entry is not None and entry.client not in self._assignments.clusters

    def _record_merged(self) -> None:
        """Merge the clusters' latest events, and append the merged event to the run's metrics."""
        logs = [strategy.event_log for strategy in self._strategies]
        events = [[each.last] for each in logs if each.last]
        for event in merge_histories(events):
            write_event(self._folder / METRICS_FILE, event)
        for each in logs:
            each.last = {}


def _replies_of(strategy: ScalarStrategy, replies: Sequence[Message]) -> list[Message]:
    nodes = strategy.nodes
    return [reply for reply in replies if reply.metadata.src_node_id in nodes]
