"""Who is there: which Flower node is which device, and where it stands in the ledger."""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from shared.errors import FrameError, SamaraError
from shared.frames import Hello, Refusal
from shared.layout import Layout
from shared.ledger.catch_up import CatchUp
from shared.wire import RECORD, Kind, kind_of

log = logging.getLogger("samara.server")


@dataclass
class Member:
    """A device of the run.

    Attributes:
        node: Flower's id of it, which changes between runs.
        device: its index, which does not.
        examples: training examples it says it holds.
        round: the last round that it is known to have.
        facts: what it says about itself, for the record.
    """

    node: int
    device: int
    examples: int
    round: int
    facts: dict[str, Any]


class Roster:
    """The devices of a run, known by their introductions.

    Attributes:
        members: by Flower node id.
        layout: that all of them have; None before the first introduction.
        model_id: of the base model that all of them have.
        clients: among how many the data set is dealt.
    """

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self.layout: Layout | None = None
        self.model_id = b""
        self.clients = 0
        self._refused: set[int] = set()
        self.reasons: list[str] = []

    def greet(self, grid: Grid, timeout: float) -> None:
        """Ask every node that has not introduced itself to do so.

        The first introduction, in order of device, fixes layout, model and number of clients of
        the run; a device with another one is refused and the reason kept in `reasons`.
        """
        unknown = [node for node in grid.get_node_ids() if node not in self.members]
        unknown = [node for node in unknown if node not in self._refused]
        if not unknown:
            return
        messages = [
            message_to(node, MessageType.QUERY, "hello", b"", CatchUp()) for node in unknown
        ]
        hellos = []
        for reply in grid.send_and_receive(messages, timeout=timeout):
            node = reply.metadata.src_node_id
            try:
                hellos.append((_hello(reply), node))
            except SamaraError as error:
                self._refuse(node, str(error))
        for hello, node in sorted(hellos, key=lambda pair: pair[0].device):
            try:
                self._admit(hello, node)
            except SamaraError as error:
                self._refuse(node, f"device {hello.device}: {error}")

    def present(self, nodes: Iterable[int]) -> dict[int, Member]:
        """Members among these nodes, by device index."""
        known = [self.members[node] for node in nodes if node in self.members]
        return {member.device: member for member in sorted(known, key=lambda m: m.device)}

    def passed(self) -> int:
        """The round that every known device has reached."""
        return min((member.round for member in self.members.values()), default=0)

    def _admit(self, hello: Hello, node: int) -> None:
        layout, facts = Layout.from_json(hello.layout), _facts(hello.facts)
        clients = facts.get("clients")
        if type(clients) is not int or clients < 1:
            raise SamaraError(f"it says that its data are dealt among {clients!r} clients")
        if self.layout is None:
            self.layout, self.model_id, self.clients = layout, hello.model_id, clients
        if layout.hash != self.layout.hash:
            raise SamaraError(
                f"its layout {layout.hash.hex()[:12]} is not this run's "
                f"{self.layout.hash.hex()[:12]}; give it the same model and adapter settings"
            )
        if hello.model_id != self.model_id:
            raise SamaraError("its base model is not this run's; give it the same model files")
        if clients != self.clients:
            raise SamaraError(
                f"its data are dealt among {clients} clients, this run's among {self.clients}; "
                "give all the same num-partitions"
            )
        if any(member.device == hello.device for member in self.members.values()):
            raise SamaraError("another node is already this device; give each its own index")
        self.members[node] = Member(node, hello.device, hello.examples, hello.round, facts)

    def _refuse(self, node: int, reason: str) -> None:
        self._refused.add(node)
        self.reasons.append(reason)
        log.warning("refused: %s", reason)


def message_to(
    node: int, message_type: str, group: str, frame: bytes, catch_up: CatchUp
) -> Message:
    """A Flower message that carries a frame, and what the node needs to catch up."""
    parts = ConfigRecord({"frame": frame, "snapshot": catch_up.snapshot, "tail": catch_up.tail})
    return Message(RecordDict({RECORD: parts}), node, message_type, group_id=group)


def frame_of(reply: Message) -> bytes:
    """The frame in a reply.

    Raises:
        FrameError: if the client app failed or the message holds no frame.
    """
    if reply.has_error():
        reason = (reply.error.reason or "").strip().splitlines()
        raise FrameError(f"the client app failed: {reason[-1] if reason else 'no reason given'}")
    record = reply.content.config_records.get(RECORD, ConfigRecord())
    frame = record.get("frame")
    if not isinstance(frame, bytes):
        raise FrameError("the reply holds no frame")
    return frame


def _hello(reply: Message) -> Hello:
    frame = frame_of(reply)
    if kind_of(frame) is Kind.REFUSAL:
        refusal = Refusal.decode(frame)
        raise SamaraError(f"device {refusal.device}: {refusal.reason}")
    return Hello.decode(frame)


def _facts(text: str) -> dict[str, Any]:
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"the facts in a hello are not JSON: {error}") from error
    if not isinstance(facts, Mapping):
        raise FrameError("the facts in a hello are not a JSON object")
    return dict(facts)
