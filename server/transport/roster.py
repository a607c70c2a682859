"""Who is there: which Flower node is which client, and where it stands in the ledger."""

import json
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from server.live.keys import Keys
from server.transport.clock import SystemClock
from server.transport.deadline_grid import DeadlineGrid
from server.transport.messages import make_message, read_frame
from shared.config import RunConfig
from shared.errors import FrameError, SamaraError
from shared.flower_compat import ErrorCode
from shared.frames.hello import Hello
from shared.frames.refusal import Refusal
from shared.layout import Layout
from shared.ledger.catch_up import CatchUp
from shared.wire import Kind, kind_of

log = logging.getLogger("samara.server")

_POLL_SECONDS = 0.5
_GREETING_SECONDS = 300.0
_REFUSED_SECONDS = 300.0
_MAX_FACTS = 16_384
_LOST = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)
"""Flower's own answers to messages that did not arrive; they say nothing about the client."""


@dataclass
class RosterEntry:
    """A client of the run.

    Attributes:
        node: Flower's id of it, which changes between runs.
        client: its index, which does not.
        examples: training examples it says it holds.
        round: the last round that it is known to have.
        facts: what it says about itself, for the record.
        public_key: of its node, PEM; empty where nodes have none.
    """

    node: int
    client: int
    examples: int
    round: int
    facts: dict[str, Any]
    public_key: bytes = b""


class Roster:
    """The clients of a run, known by their introductions and, where there are keys, by these.

    A node that goes away is forgotten: it may come back under another Flower id, or restored.

    Attributes:
        entries: by Flower node id.
        layout: that all of them have; None before the first introduction.
        model_id: of the base model that all of them have.
        client_count: among how many the data set is dealt; 0 if every client has data of its own.
    """

    def __init__(self, keys: Keys | None = None) -> None:
        self.entries: dict[int, RosterEntry] = {}
        self.layout: Layout | None = None
        self.model_id = b""
        self.client_count = 0
        self._keys = keys
        self._asked: dict[str, int] = {}
        self._refused: dict[int, tuple[str, float]] = {}

    @property
    def refusal_reasons(self) -> list[str]:
        """Why nodes that are there do not take part."""
        return [reason for reason, _ in self._refused.values()]

    def request_hellos(self, grid: Grid, timeout: float) -> None:
        """Ask every node that has not introduced itself to do so.

        The first introduction, in order of client, fixes layout, model and number of clients of
        the run; a client with another one is refused, for some minutes. Answers are waited for
        only while nobody is known; later ones are taken in at the next call.

        Args:
            grid: Flower's.
            timeout: most seconds to wait.
        """
        nodes = _nodes(grid)
        self._forget_all_but(nodes)
        for node in nodes:
            if reason := self._why_not(nodes[node]):
                self._refuse(node, reason)
        known = self.entries.keys() | self._refused.keys() | set(self._asked.values())
        unknown = [node for node in nodes if node not in known]
        if unknown:
            seconds = max(timeout, _GREETING_SECONDS)  # nothing waits for it once somebody is known
            messages = [
                make_message(node, MessageType.QUERY, "hello", b"", CatchUp(), seconds)
                for node in unknown
            ]
            self._asked |= zip(grid.push_messages(messages), unknown, strict=True)
        end = time.monotonic() + (0 if self.entries else min(timeout, _GREETING_SECONDS))
        while self._asked:
            self._take_in(grid.pull_messages(list(self._asked)), nodes)
            if not self._asked or time.monotonic() > end:
                break
            time.sleep(_POLL_SECONDS)

    def entries_of(self, nodes: Iterable[int]) -> dict[int, RosterEntry]:
        """Members among these nodes, by client index."""
        known = [self.entries[node] for node in nodes if node in self.entries]
        return {entry.client: entry for entry in sorted(known, key=lambda m: m.client)}

    def lowest_round(self) -> int:
        """The round that every known client has reached."""
        return min((entry.round for entry in self.entries.values()), default=0)

    def refusal_reason(self, entry: RosterEntry) -> str:
        """Why an entry may no longer take part; empty if it may."""
        return self._why_not(entry.public_key)

    def _forget_all_but(self, nodes: Mapping[int, bytes]) -> None:
        gone = self.entries.keys() - nodes.keys()
        for node in gone:
            del self.entries[node]
        self._asked = {i: node for i, node in self._asked.items() if node in nodes}
        now = time.monotonic()
        self._refused = {
            node: (reason, until)
            for node, (reason, until) in self._refused.items()
            if node in nodes and now < until and not gone
        }

    def _take_in(self, replies: Iterable[Message], nodes: Mapping[int, bytes]) -> None:
        hellos = []
        for reply in replies:
            node = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if reply.has_error() and reply.error.code in _LOST:
                log.warning("lost: a hello of a node; asking again")
                continue
            try:
                hellos.append((_hello(reply), node))
            except SamaraError as error:
                self._refuse(node, str(error))
        for hello, node in sorted(hellos, key=lambda pair: pair[0].client):
            try:
                self._admit(hello, node, nodes[node])
            except SamaraError as error:
                self._refuse(node, f"client {hello.client}: {error}")

    def _admit(self, hello: Hello, node: int, public_key: bytes) -> None:
        layout, facts = Layout.from_json(hello.layout), _facts(hello.facts)
        client_count = facts.get("clients")
        if type(client_count) is not int or client_count < 0:
            raise SamaraError(f"it says that its data are dealt among {client_count!r} clients")
        if self.layout is None:
            self.layout, self.model_id, self.client_count = layout, hello.model_id, client_count
        if layout.hash != self.layout.hash:
            raise SamaraError(
                f"its layout {layout.hash.hex()[:12]} is not this run's "
                f"{self.layout.hash.hex()[:12]}; give it the same model and adapter settings"
            )
        if hello.model_id != self.model_id:
            raise SamaraError("its base model is not this run's; give it the same model files")
        if client_count != self.client_count:
            raise SamaraError(
                f"its data are dealt among {client_count} clients, "
                f"this run's among {self.client_count}; "
                "give all the same num-partitions"
            )
        if any(entry.client == hello.client for entry in self.entries.values()):
            raise SamaraError("another node is already this client; give each its own index")
        if self._keys:
            self._keys.check(public_key, hello.client)
        self.entries[node] = RosterEntry(
            node, hello.client, hello.examples, hello.round, facts, public_key
        )

    def _why_not(self, public_key: bytes) -> str:
        return self._keys.refusal(public_key) if self._keys else ""

    def _refuse(self, node: int, reason: str) -> None:
        self.entries.pop(node, None)
        before, _ = self._refused.get(node, ("", 0.0))
        self._refused[node] = reason, time.monotonic() + _REFUSED_SECONDS
        if reason != before:
            log.warning("refused: %s", reason)


def await_clients(roster: Roster, grid: Grid, config: RunConfig) -> dict[int, RosterEntry]:
    """Greet who is new, and wait for as many clients as a round needs, but not beyond its time.

    Returns:
        The entries that can be asked now, by client index.
    """
    wanted = min(config.cohort.minimum, config.data.clients)
    clock = grid.clock if isinstance(grid, DeadlineGrid) else SystemClock()
    end = clock.now() + config.cohort.timeout
    while True:
        roster.request_hellos(grid, config.cohort.timeout)
        present = roster.entries_of(clock.reachable(_nodes(grid)))
        if len(present) >= wanted or clock.now() >= end:
            return present
        clock.wait(end - clock.now())


def _nodes(grid: Grid) -> dict[int, bytes]:
    """The nodes that are there, with their public keys (PEM); without one where nobody has any."""
    if isinstance(grid, DeadlineGrid):
        return grid.connected_nodes()
    return dict.fromkeys(grid.get_node_ids(), b"")


def _hello(reply: Message) -> Hello:
    frame = read_frame(reply)
    if kind_of(frame) is Kind.REFUSAL:
        refusal = Refusal.decode(frame)
        raise SamaraError(f"client {refusal.client}: {refusal.reason}")
    return Hello.decode(frame)


def _facts(text: str) -> dict[str, Any]:
    if len(text) > _MAX_FACTS:
        raise FrameError(f"the facts in a hello are longer than {_MAX_FACTS} characters")
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"the facts in a hello are not JSON: {error}") from error
    if not isinstance(facts, Mapping):
        raise FrameError("the facts in a hello are not a JSON object")
    return dict(facts)
