"""The roster of a run: node, last known round and self-description of each client."""

import json
import logging
import time
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from samara.server.live.keys import ClientKeys
from samara.server.live.server_log import REFUSED_EVENT
from samara.server.transport.blob_sender import BlobSender
from samara.server.transport.deadline_grid import DeadlineGrid, SystemClock
from samara.server.transport.messages import (
    LOST,
    cut_foreign_text,
    decode_foreign,
    make_message,
    read_frame,
)
from samara.server.transport.quorum import Quorum, RunIdentity
from samara.server.transport.refusal_notices import RefusalNotices
from samara.shared.errors import (
    BlobError,
    ClientKeyError,
    ConfigError,
    FrameError,
    LayoutError,
    ModelError,
    RefusalCode,
    SamaraError,
    TakenIndexError,
)
from samara.shared.protocol.frames.hello import SPLIT_EXAMPLES, SPLIT_TOKENS, Hello, stated_count
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.wire import Kind, kind_of

log = logging.getLogger("samara.server")

_POLL_SECONDS = 0.5
HELLO_SECONDS = _REFUSED_SECONDS = 300.0
_MAX_FACTS, _MAX_LAYOUT = 2**14, 2**20


@dataclass
class RosterEntry:
    """A client of the run and its node.

    Attributes:
        node: Flower's id of the node, which changes between runs.
        client: client index, which never changes.
        examples: number of training examples, from the client's hello.
        round: last round whose state the client is known to have.
        facts: the client's description of itself, for the result of the run.
        public_key: public key of the node, PEM; empty if nodes have no keys.
        by_stream: whether the client is attached to a gateway, and not connected by a SuperNode.
        follows: whether the client could catch up with this ledger at its last instruction; None
            before its first answer.
    """

    node: int
    client: int
    examples: int
    round: int
    facts: dict[str, Any]
    public_key: bytes = b""
    by_stream: bool = False
    follows: bool | None = None

    def most_examples(self, split: Split) -> int:
        """Return the number of examples that the client declared for a split.

        Without a declaration for the split, this is the number of training examples.
        """
        return stated_count(self.facts, SPLIT_EXAMPLES, split.name, self.examples)

    def most_predictions(self, split: Split) -> int:
        """Return the largest number of predictions that the client can make on a split.

        This is the declared number of tokens in answers. Without this number, it is the number of
        examples.
        """
        return stated_count(self.facts, SPLIT_TOKENS, split.name, self.most_examples(split))


class Roster:
    """The clients of a run that have introduced themselves.

    A node that disconnects loses its entry, because the client may return as another node or with
    an older state.

    Args:
        keys: client keys of the run; None admits clients without a key.
        blobs: sender of files that clients lack; None if the run has no such files.
        quorum: rule that decides the run's identity; None lets the first hello decide.

    Attributes:
        entries: entries by Flower node id.
        layout: layout of the adapter of all clients; None until the layout is decided.
        model_id: id of the base model of all clients; empty until the model is decided.
        client_count: number of clients that share the data set; 0 if clients bring their own data.
        most_clients: largest number of clients that can train; None if unlimited.
    """

    most_clients: int | None = None

    def __init__(
        self,
        keys: ClientKeys | None = None,
        blobs: BlobSender | None = None,
        quorum: Quorum | None = None,
    ) -> None:
        self.entries: dict[int, RosterEntry] = {}
        self.layout: Layout | None = None
        self.model_id = b""
        self.client_count = 0
        self._keys, self._blobs, self._quorum = keys, blobs, quorum
        # Clients that introduced themselves before the run's identity was decided, by node.
        self._introduced: dict[int, tuple[RosterEntry, RunIdentity]] = {}
        self._hello_requests: dict[str, int] = {}  # node by message id
        self._lost_hellos: set[int] = set()  # nodes with a lost hello in the log
        # Reason, and time of the next attempt (monotonic seconds), by node.
        self._refused: dict[int, tuple[str, float]] = {}
        self._notices: RefusalNotices | None = None  # created at the first refusal

    @property
    def refusal_reasons(self) -> list[str]:
        """The reasons for refusing connected nodes."""
        return [reason for reason, _ in self._refused.values()]

    @property
    def undecided_hellos(self) -> int:
        """The number of clients that have sent a hello while the run's identity is undecided."""
        return len(self._introduced)

    def request_hellos(self, grid: Grid, timeout: float) -> None:
        """Request a hello from every new node, and process the hellos that have arrived.

        A quorum of equal hellos decides layout, base model and number of clients of the run. A
        client with different values is refused for five minutes. The call waits only while no hello
        has arrived. A client that lacks a blob receives the blob, and then a new hello request.

        Args:
            grid: Flower's grid.
            timeout: maximum time to wait, in seconds.

        """
        nodes = _connected_nodes(grid)
        self.forget_absent(nodes)
        for node, public_key in nodes.items():
            if error := self._key_refusal(public_key):
                self._refuse(node, error)
        if self._blobs:
            self._send_blobs(self._blobs, grid, nodes)
        known = set(self._hello_requests.values()) | (self._blobs.nodes if self._blobs else set())
        new = [node for node in self.silent_nodes(nodes) if node not in known]
        if new:
            seconds = max(timeout, HELLO_SECONDS)
            messages = [
                make_message(node, MessageType.QUERY, "hello", b"", CatchUp(), seconds)
                for node in new
            ]
            self._hello_requests |= zip(grid.push_messages(messages), new, strict=True)
        has_hellos = self.entries or self._introduced
        end = time.monotonic() + (0 if has_hellos else min(timeout, HELLO_SECONDS))
        while self._hello_requests:
            self._receive_hellos(grid.pull_messages(list(self._hello_requests)), nodes)
            if not self._hello_requests or time.monotonic() > end:
                break
            time.sleep(_POLL_SECONDS)
        self._admit_introduced()
        for entry in self.entries.values():
            entry.by_stream = isinstance(grid, DeadlineGrid) and grid.is_by_stream(entry.node)
        if self._notices:
            self._notices.send(grid, nodes)

    def silent_nodes(self, nodes: Iterable[int]) -> list[int]:
        """Return the nodes that have not introduced themselves and were not refused."""
        heard = self.entries.keys() | self._introduced.keys() | self._refused.keys()
        return [node for node in nodes if node not in heard]

    def send_blobs(self, grid: Grid) -> None:
        """Send the next parts of missing blobs to clients, without waiting."""
        if self._blobs and self._blobs.nodes:
            self._send_blobs(self._blobs, grid, _connected_nodes(grid))

    def begin_transfer(self, entry: RosterEntry, refusal: Refusal) -> None:
        """Begin the transfer of a blob to a client that lacks it.

        The client must send a new hello after the transfer.

        Args:
            entry: entry of the client; it is removed from the roster.
            refusal: the client's refusal of an instruction, with `RefusalCode.MISSING_BLOB`.
        """
        self.entries.pop(entry.node, None)
        try:
            self._begin_transfer(entry.node, entry.public_key, refusal)
        except SamaraError as error:
            self._refuse(entry.node, error)

    def entries_of(self, nodes: Iterable[int]) -> dict[int, RosterEntry]:
        """Return the entries of these nodes, by client index in ascending order."""
        entries = [self.entries[node] for node in nodes if node in self.entries]
        return {entry.client: entry for entry in sorted(entries, key=lambda entry: entry.client)}

    def by_stream(self, clients: Iterable[int]) -> list[int]:
        """Return the clients that are attached to a gateway, ascending."""
        attached = {entry.client for entry in self.entries.values() if entry.by_stream}
        return sorted(attached.intersection(clients))

    def lowest_round(self) -> int:
        """Return the last round that all clients of the roster have."""
        return min((entry.round for entry in self.entries.values()), default=0)

    def refusal_reason(self, entry: RosterEntry) -> str:
        """Return the reason why a client may no longer take part; empty if it may."""
        return str(self._key_refusal(entry.public_key) or "")

    def forget_absent(self, nodes: Mapping[int, bytes]) -> None:
        """Discard the data of disconnected nodes, and expired refusals.

        If a client of the roster disconnects, all refusals end, because the client may have
        returned as one of the refused nodes.
        """
        gone = self.entries.keys() - nodes.keys()
        for node in gone:
            del self.entries[node]
        self._introduced = {node: i for node, i in self._introduced.items() if node in nodes}
        self._hello_requests = {i: n for i, n in self._hello_requests.items() if n in nodes}
        self._lost_hellos &= nodes.keys()
        now = time.monotonic()
        self._refused = {
            node: (reason, until)
            for node, (reason, until) in self._refused.items()
            if node in nodes and now < until and not gone
        }

    def _receive_hellos(self, replies: Iterable[Message], nodes: Mapping[int, bytes]) -> None:
        """Admit or refuse the senders of these replies, in order of client index."""
        hellos = []
        for reply in replies:
            node = self._hello_requests.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if reply.has_error() and reply.error.code in LOST:
                if node not in self._lost_hellos:
                    log.warning("a hello was lost and is requested again")
                self._lost_hellos.add(node)
                continue
            try:
                frame = read_frame(reply)
                if kind_of(frame) is Kind.REFUSAL:
                    self._begin_transfer(node, nodes[node], decode_foreign(Refusal.decode, frame))
                else:
                    hellos.append((decode_foreign(Hello.decode, frame), node))
            except SamaraError as error:
                self._refuse(node, error)
        taken = {entry.client for entry, _ in self._introduced.values()}
        taken |= {entry.client for entry in self.entries.values()}
        for hello, node in sorted(hellos, key=lambda pair: pair[0].client):
            try:
                self._introduced[node] = self._introduction(hello, node, nodes[node], taken)
                taken.add(hello.client)
            except SamaraError as error:
                self._refuse(node, error, hello.client)

    def _begin_transfer(self, node: int, public_key: bytes, refusal: Refusal) -> None:
        """Begin to send a node the blob that the node's refusal names.

        Raises:
            SamaraError: if the node refuses for another reason, or may not receive the blob.
        """
        if self._keys and refusal.code == RefusalCode.MISSING_BLOB:
            self._keys.check(public_key, refusal.client)
        if self._blobs is None:
            raise SamaraError(f"client {refusal.client}: {refusal.description}")
        self._blobs.begin(node, public_key, refusal)

    def _send_blobs(self, blobs: BlobSender, grid: Grid, nodes: Mapping[int, bytes]) -> None:
        for node, reason in blobs.advance(grid, nodes).items():
            self._refuse(node, BlobError(reason))

    def _introduction(
        self, hello: Hello, node: int, public_key: bytes, taken: Set[int]
    ) -> tuple[RosterEntry, RunIdentity]:
        """Return the roster entry and the run identity that a hello describes.

        Raises:
            SamaraError: if the sender may not take part; the message gives the reason.
        """
        if self._keys:
            self._keys.check(public_key, hello.client)
        if len(hello.layout) > _MAX_LAYOUT:
            raise SamaraError(f"the layout in its hello is longer than {_MAX_LAYOUT} characters")
        layout = decode_foreign(Layout.from_json, hello.layout)
        facts = decode_foreign(_parse_facts, hello.facts)
        client_count = facts.get("clients")
        if type(client_count) is not int or client_count < 0:
            raise SamaraError(
                f"the number of clients in its hello, {client_count!r}, is not a count"
            )
        if hello.client in taken:
            raise TakenIndexError(
                "another node already has this client index; give each node a different index"
            )
        identity = RunIdentity(layout, hello.model_id, client_count)
        if self._quorum:
            self._quorum.check(identity)
        entry = RosterEntry(node, hello.client, hello.examples, hello.round, facts, public_key)
        return entry, identity

    def _admit_introduced(self) -> None:
        """Decide the run's identity if possible, and then admit or refuse the waiting clients."""
        if self.layout is None:
            introductions = sorted(self._introduced.values(), key=lambda pair: pair[0].client)
            identities = [identity for _, identity in introductions]
            decision = (
                self._quorum.decide(identities) if self._quorum else next(iter(identities), None)
            )
            if decision is None:
                return
            self.layout, self.model_id = decision.layout, decision.model_id
            self.client_count = decision.client_count
        introduced, self._introduced = self._introduced, {}
        for node, (entry, identity) in introduced.items():
            if error := self._difference(identity, self.layout):
                self._refuse(node, error, entry.client)
            else:
                self.entries[node] = entry

    def _difference(self, identity: RunIdentity, layout: Layout) -> SamaraError | None:
        """Return the reason why a client does not fit this run's identity; None if it fits."""
        if identity.layout.hash != layout.hash:
            return LayoutError(
                f"its layout {identity.layout.hash.hex()[:12]} differs from this run's layout "
                f"{layout.hash.hex()[:12]}; use the same model and adapter settings on this client"
            )
        if identity.model_id != self.model_id:
            return ModelError("its base model differs from this run's; use the same model files")
        if identity.client_count != self.client_count:
            return ConfigError(
                f"its data set is divided among {identity.client_count} clients, but this run's "
                f"among {self.client_count}; give all clients the same num-partitions"
            )
        return None

    def _key_refusal(self, public_key: bytes) -> ClientKeyError | None:
        """Return the reason why the holder of a key may not take part; None if it may."""
        return self._keys.refusal(public_key) if self._keys else None

    def _refuse(self, node: int, error: SamaraError, client: int | None = None) -> None:
        """Refuse a node for five minutes; send it a notice if the reason is not the last one."""
        name = self._keys.name_of(client) if self._keys and client is not None else ""
        who = "" if client is None else f"client {client}" + (f" ({name})" if name else "") + ": "
        reason = cut_foreign_text(f"{who}{error}")
        self.entries.pop(node, None)
        self._introduced.pop(node, None)
        before, _ = self._refused.get(node, ("", 0.0))
        self._refused[node] = reason, time.monotonic() + _REFUSED_SECONDS
        if reason != before:
            # A node without the client's key may be a stranger that claims to be this client.
            known = None if isinstance(error, ClientKeyError) else client
            event = {"event": REFUSED_EVENT, "client": known}
            log.warning("refused: %s", reason, extra={"event": event})
            self._notices = self._notices or RefusalNotices()
            self._notices.add(node, client or 0, error)


def await_clients(
    roster: Roster, grid: Grid, minimum: int, timeout: float
) -> dict[int, RosterEntry]:
    """Wait until a round's required number of clients is reachable.

    Args:
        roster: clients of the run.
        grid: Flower's grid.
        minimum: number of clients to wait for.
        timeout: maximum time to wait, in seconds.

    Returns:
        Entries of the reachable clients, by client index.
    """
    clock = grid.clock if isinstance(grid, DeadlineGrid) else SystemClock()
    end = clock.now() + timeout
    while True:
        roster.request_hellos(grid, timeout)
        reachable = roster.entries_of(filter(clock.is_reachable, _connected_nodes(grid)))
        if len(reachable) >= minimum or clock.now() >= end:
            return reachable
        clock.wait(end - clock.now())


def _connected_nodes(grid: Grid) -> dict[int, bytes]:
    """Return the public key (PEM) of every connected node, by node id; empty without a key."""
    if isinstance(grid, DeadlineGrid):
        return grid.connected_nodes()
    return dict.fromkeys(grid.get_node_ids(), b"")


def _parse_facts(text: str) -> dict[str, Any]:
    """Parse the facts of a hello.

    Raises:
        FrameError: if the facts are too long or not a JSON object.
    """
    if len(text) > _MAX_FACTS:
        raise FrameError(f"the facts in a hello are longer than {_MAX_FACTS} characters")
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"the facts in a hello are not JSON: {error}") from error
    if not isinstance(facts, Mapping):
        raise FrameError("the facts in a hello are not a JSON object")
    return dict(facts)
