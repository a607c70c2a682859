"""Replies with the bytes of hostile clients: senders are known, and broken replies refused."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, PullObjectResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import (
    GetNodesResponse,
    PullAppMessagesResponse,
    PushAppMessagesResponse,
)

from samara.server.transport import guarded_grid
from samara.server.transport.deadline_grid import DeadlineGrid, prepare_grid
from samara.server.transport.guarded_grid import GuardedGrid
from samara.server.transport.messages import LOST, MAX_FOREIGN_TEXT, make_message
from samara.server.transport.phone_grid import PhoneGrid
from samara.shared.flower_compat import (
    SUPERLINK_NODE_ID,
    ErrorCode,
    HttpGrid,
    ObjectTree,
    Run,
    TaskIdentity,
    get_all_nested_objects,
    get_object_tree,
    message_to_proto,
)
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.wire import RECORD

RUN = 7
HONEST, HOSTILE = 11, 12
FRAME = b"a frame"

Bytes = dict[str, bytes]


class SuperLink:
    """The runtime API of a SuperLink, with the replies that nodes have pushed."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.replies: dict[str, tuple[Any, ObjectTree]] = {}
        self.objects: Bytes = {}
        self.confirmed: list[str] = []
        self.unreadable: set[str] = set()
        self.pulls = self.asked_for_nodes = 0
        self.activated: dict[int, str] = {}

    def GetNodes(self, request: Any) -> GetNodesResponse:  # noqa: N802
        self.asked_for_nodes += 1
        if self.activated:
            nodes = [NodeInfo(node_id=n, last_activated_at=at) for n, at in self.activated.items()]
            return GetNodesResponse(nodes=nodes)
        return GetNodesResponse(nodes=[NodeInfo(node_id=self.asked_for_nodes, public_key=b"PEM")])

    def PushMessages(self, request: Any) -> PushAppMessagesResponse:  # noqa: N802
        self.sent += request.messages_list
        ids = [message.metadata.message_id for message in request.messages_list]
        return PushAppMessagesResponse(message_ids=ids)

    def PushObject(self, request: Any) -> None:  # noqa: N802
        raise AssertionError("nothing was asked for")

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:  # noqa: N802
        self.pulls += 1
        if self.unreadable & set(request.message_ids):
            where = httpx.Request("POST", "https://127.0.0.1")
            raise httpx.HTTPStatusError("500", request=where, response=httpx.Response(500))
        found = [self.replies.pop(i) for i in request.message_ids if i in self.replies]
        return PullAppMessagesResponse(
            messages_list=[message for message, _ in found],
            message_object_trees=[tree for _, tree in found],
        )

    def PullObject(self, request: Any) -> PullObjectResponse:  # noqa: N802
        content = self.objects.get(request.object_id)
        return PullObjectResponse(
            object_found=True, object_available=content is not None, object_content=content
        )

    def ConfirmMessageReceived(self, request: Any) -> ConfirmMessageReceivedResponse:  # noqa: N802
        self.confirmed.append(request.message_object_id)
        return ConfirmMessageReceivedResponse()

    def reply(
        self,
        node: int,
        content: RecordDict | Error,
        change: Callable[[Message], None] = lambda message: None,
    ) -> Message:
        """Push a node's reply to its message; `change` alters the reply before it is encoded."""
        [asked] = [m.metadata for m in self.sent if m.metadata.dst_node_id == node]
        message = Message(RecordDict(), node, MessageType.TRAIN, ttl=asked.ttl)
        message.metadata.__dict__["_message_id"] = asked.message_id
        reply = Message(content, reply_to=message)
        change(reply)
        metadata = message_to_proto(reply)
        metadata.metadata.message_id = reply.object_id
        # as Flower's fleet API has checked them
        metadata.metadata.src_node_id = node
        metadata.metadata.reply_to_message_id = asked.message_id
        self.replies[asked.message_id] = metadata, get_object_tree(reply)
        self.objects |= {i: part.deflate() for i, part in get_all_nested_objects(reply).items()}
        return reply

    def push_bytes(self, node: int, objects: Bytes, root: str, tree: ObjectTree) -> None:
        """Push a node's reply as objects that the node has made itself."""
        self.reply(node, records())
        [message_id] = [m.metadata.message_id for m in self.sent if m.metadata.dst_node_id == node]
        metadata, _ = self.replies[message_id]
        metadata.metadata.message_id = root
        self.replies[message_id] = metadata, tree
        self.objects |= objects


def records(frame: bytes = FRAME) -> RecordDict:
    return RecordDict({RECORD: ConfigRecord({"frame": frame})})


@pytest.fixture
def superlink() -> SuperLink:
    return SuperLink()


@pytest.fixture
def http_grid(superlink: SuperLink) -> HttpGrid:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, SUPERLINK_NODE_ID, 1
    grid = HttpGrid(token="token")
    grid.set_run(Run.create_empty(RUN))
    grid.__dict__["_client"] = superlink
    return grid


def send(grid: Any, *nodes: int, kind: str = MessageType.TRAIN) -> dict[int, str]:
    """Send each node a message; return the ids of the messages by node."""
    messages = [make_message(n, kind, "1", b"do", CatchUp(), 60.0) for n in nodes]
    return dict(zip(nodes, grid.push_messages(messages), strict=True))


def object_of(kind: str, children: list[str], body: bytes) -> bytes:
    """Return an object's bytes in Flower's format."""
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\x00" + body


ABSENT = "ab" * 32
BROKEN: dict[str, bytes] = {
    "without its parts": object_of("Message", [ABSENT], b""),
    "of no kind": object_of("Exploit", [], b""),
    "no object": b"\xff" * 50,
    "empty": b"",
    "an array": object_of("ConfigRecord", [], b""),
    "damaged": object_of("Message", [], b"\xff\xff\xff"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_reply_is_an_error_of_its_sender_alone(
    http_grid: HttpGrid, superlink: SuperLink, name: str
) -> None:
    grid = GuardedGrid(http_grid)
    ids = send(grid, HOSTILE, HONEST)
    root = "cd" * 32
    superlink.push_bytes(HOSTILE, {root: BROKEN[name]}, root, ObjectTree(object_id=root))
    superlink.reply(HONEST, records())
    replies = {reply.metadata.src_node_id: reply for reply in grid.pull_messages(ids.values())}
    assert replies[HOSTILE].error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert replies[HOSTILE].error.reason.startswith("its reply is broken: ")
    assert replies[HONEST].content.config_records[RECORD]["frame"] == FRAME
    assert superlink.confirmed == []  # the next messages are sent first
    assert list(grid.pull_messages(ids.values())) == []
    assert root in superlink.confirmed  # its bytes are deleted
    assert len(superlink.confirmed) == len(ids)


def test_the_connected_nodes_are_asked_for_while_nothing_comes(
    http_grid: HttpGrid, superlink: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, now = GuardedGrid(http_grid), 100.0
    monkeypatch.setattr(guarded_grid.time, "monotonic", lambda: now)
    ids = send(grid, HONEST)
    assert grid.connected_nodes() == grid.connected_nodes() == {1: b"PEM"}
    now += 0.6
    assert list(grid.pull_messages(ids.values())) == list(grid.pull_messages([])) == []
    assert grid.connected_nodes() == {2: b"PEM"}  # known since, and not asked for again
    now += 0.6
    superlink.reply(HONEST, records())
    assert len(list(grid.pull_messages(ids.values()))) == 1
    assert grid.connected_nodes() == {2: b"PEM"}
    now += 0.6
    assert grid.connected_nodes() == {3: b"PEM"}


def test_after_an_error_the_connected_nodes_are_asked_for_anew(
    http_grid: HttpGrid, superlink: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a round could begin, within a second, with a client that has just left."""
    monkeypatch.setattr(guarded_grid.time, "monotonic", lambda: 100.0)
    grid = GuardedGrid(http_grid)
    ids = send(grid, HONEST)
    assert grid.connected_nodes() == {1: b"PEM"}
    superlink.reply(HONEST, Error(ErrorCode.NODE_UNAVAILABLE, "it has left"))
    assert len(list(grid.pull_messages(ids.values()))) == 1
    assert grid.connected_nodes() == {2: b"PEM"}
    monkeypatch.setattr(grid, "_push", lambda messages: [""])
    grid.push_messages([])
    assert grid.connected_nodes() == {3: b"PEM"}


def test_a_hello_request_to_an_earlier_process_of_a_node_is_lost(
    http_grid: HttpGrid, superlink: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower would report it only while the node is away, which may take less than a second."""
    now = 100.0
    monkeypatch.setattr(guarded_grid.time, "monotonic", lambda: now)
    superlink.activated = {HONEST: "10:00:00", HOSTILE: "10:00:00"}
    grid = GuardedGrid(http_grid)
    grid.connected_nodes()
    train = send(grid, HONEST, HOSTILE)
    hellos = send(grid, HONEST, HOSTILE, kind=MessageType.QUERY)
    ids = [*train.values(), *hellos.values()]
    assert list(grid.pull_messages(ids)) == []
    superlink.activated[HONEST] = "10:00:07"
    now += 5.0
    grid.connected_nodes()
    [lost] = grid.pull_messages(ids)
    assert lost.metadata.reply_to_message_id == hellos[HONEST]
    assert lost.error.code in LOST
    assert list(grid.pull_messages(ids)) == []  # reported once, and no other message
    again = send(grid, HONEST, kind=MessageType.QUERY)
    now += 5.0
    grid.connected_nodes()
    assert list(grid.pull_messages(again.values())) == []


def test_flowers_own_grid_loses_every_reply_to_a_broken_one(
    http_grid: HttpGrid, superlink: SuperLink
) -> None:
    """This is the reason for the guard. If this test fails, Flower has its own guard."""
    ids = send(http_grid, HOSTILE, HONEST)
    root = "cd" * 32
    broken = {root: BROKEN["without its parts"]}
    superlink.push_bytes(HOSTILE, broken, root, ObjectTree(object_id=root))
    superlink.reply(HONEST, records())
    with pytest.raises(KeyError):
        http_grid.pull_messages(list(ids.values()))


def test_a_reply_with_many_objects_is_not_fetched(
    http_grid: HttpGrid, superlink: SuperLink
) -> None:
    grid = GuardedGrid(http_grid)
    ids = send(grid, HOSTILE)
    children = [ObjectTree(object_id=f"{n:064x}") for n in range(1000)]
    superlink.push_bytes(HOSTILE, {}, ABSENT, ObjectTree(object_id=ABSENT, children=children))
    [reply] = grid.pull_messages(ids.values())
    assert "it has 1001 objects, more than 8" in reply.error.reason


def test_sender_and_message_are_the_servers_own(http_grid: HttpGrid, superlink: SuperLink) -> None:
    grid = GuardedGrid(http_grid)
    ids = send(grid, HOSTILE, HONEST)

    def pretend(reply: Message) -> None:
        reply.metadata.__dict__["_src_node_id"] = HONEST
        reply.metadata.__dict__["_reply_to_message_id"] = ids[HONEST]
        reply.metadata.__dict__["_message_type"] = MessageType.EVALUATE

    superlink.reply(HOSTILE, records(b"forged"), pretend)
    [reply] = grid.pull_messages(ids.values())
    assert reply.metadata.src_node_id == HOSTILE
    assert reply.metadata.reply_to_message_id == ids[HOSTILE]
    assert reply.metadata.message_type == MessageType.TRAIN
    superlink.reply(HONEST, records())
    assert [r.metadata.src_node_id for r in grid.pull_messages(ids.values())] == [HONEST]


def test_a_reply_to_a_message_that_was_not_sent_is_dropped(
    http_grid: HttpGrid, superlink: SuperLink
) -> None:
    grid = GuardedGrid(http_grid)
    ids = send(grid, HOSTILE)
    superlink.reply(HOSTILE, records())
    [answer] = superlink.replies.values()
    superlink.replies[ids[HOSTILE]] = answer
    answer[0].metadata.reply_to_message_id = "another"
    assert list(grid.pull_messages([*ids.values(), "another"])) == []


def test_a_clients_text_is_cut_and_cannot_be_taken_for_the_superlinks(
    http_grid: HttpGrid, superlink: SuperLink
) -> None:
    grid = GuardedGrid(http_grid)
    ids = send(grid, HOSTILE)
    superlink.reply(HOSTILE, Error(ErrorCode.NODE_UNAVAILABLE, "a lie\n\x1b[2J" * 100_000))
    [reply] = grid.pull_messages(ids.values())
    assert reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert len(reply.error.reason) == MAX_FOREIGN_TEXT
    assert reply.error.reason.isprintable()


def test_a_reply_that_has_not_arrived_whole_delays_nobody(
    http_grid: HttpGrid, superlink: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = GuardedGrid(http_grid)
    ids = send(grid, HOSTILE, HONEST)
    part, content = superlink.reply(HOSTILE, records()).object_id, superlink.objects.copy()
    del superlink.objects[part]
    superlink.reply(HONEST, records())
    assert [r.metadata.src_node_id for r in grid.pull_messages(ids.values())] == [HONEST]
    assert list(grid.pull_messages(ids.values())) == []
    superlink.objects |= content
    [reply] = grid.pull_messages(ids.values())
    assert reply.content.config_records[RECORD]["frame"] == FRAME
    late = send(grid, HOSTILE + 1)
    del superlink.objects[superlink.reply(HOSTILE + 1, records(b"x")).object_id]
    monkeypatch.setattr(guarded_grid, "_ARRIVAL_SECONDS", 0.0)
    [reply] = grid.pull_messages(late.values())
    assert reply.error.reason == "its reply did not arrive completely"


def test_a_reply_that_the_superlink_cannot_read_does_not_keep_the_others(
    http_grid: HttpGrid, superlink: SuperLink
) -> None:
    grid = GuardedGrid(http_grid)
    ids = send(grid, *range(20, 30))
    for node in range(20, 30):
        superlink.reply(node, records(bytes([node])))
    superlink.unreadable = {ids[24]}
    replies = {r.metadata.src_node_id: r for r in grid.pull_messages(ids.values())}
    assert replies.keys() == set(range(20, 30))
    assert [node for node, reply in replies.items() if reply.has_error()] == [24]
    assert superlink.pulls < 12


def test_a_live_run_uses_the_guard(http_grid: HttpGrid) -> None:
    grid = prepare_grid(http_grid)
    assert isinstance(grid, PhoneGrid)
    assert isinstance(grid._grid, GuardedGrid)
    assert isinstance(DeadlineGrid(grid, 1)._grid, PhoneGrid)
