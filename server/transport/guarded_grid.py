"""A grid that uses only the content of a reply and ignores the metadata that its sender wrote.

The metadata of a reply name its sender and the message that it answers, but the sender can write
any values. This grid takes these two values from the server's table of sent messages.

A node's process may end without an answer to a hello request, and its next process may connect
before the grid asks for the reply. Flower then never reports the request as lost. This grid does.

The grid fetches and decodes every reply separately. A broken reply becomes an error reply of its
sender and does not affect other replies. Flower's own `Grid.pull_messages` decodes all replies
together. One broken reply therefore raises an exception for all replies.
"""

import logging
import math
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
from flwr.app import Error, Message, MessageType, RecordDict

from samara.server.transport.delegating_grid import DelegatingGrid
from samara.server.transport.messages import LOST, cut_foreign_text
from samara.shared.errors import FrameError
from samara.shared.flower_compat import (
    SUPERLINK_NODE_ID,
    ConfirmMessageReceivedRequest,
    ErrorCode,
    ObjectPullError,
    ObjectTree,
    ObjectUnavailableError,
    PullAppMessagesRequest,
    PullObjectRequest,
    inflate_object_from_contents,
    iterate_object_tree,
    pull_objects,
    runtime_client,
    set_message_id,
)

if TYPE_CHECKING:
    from samara.shared.flower_compat import HttpGrid, NodeInfo

log = logging.getLogger("samara.server")

MAX_OBJECTS = 8
"""Maximum number of objects in a reply; a valid reply has three: message, records, one record."""
MAX_OBJECT_BYTES = 64 * 2**20
"""Maximum size of a reply's objects, in bytes; the access filter limits clients to much less."""
_KNOWN_SECONDS, _ASKED_SECONDS = 1.0, 0.5
"""Maximum age of the list of connected nodes, in seconds, and the age for a refresh when idle."""
_ARRIVAL_SECONDS = 10.0
"""Time limit for the arrival of an announced reply's objects, in seconds."""
_EXPIRED_SECONDS = 3600.0
"""Time for which the table of sent messages keeps a message after its time to live, in seconds."""


@dataclass(frozen=True)
class _AnnouncedReply:
    """A reply announced by the SuperLink.

    Attributes:
        object_id: Flower's id of the reply.
        tree: ids of the reply's objects.
        source: node from which the SuperLink received the reply.
        end: deadline for the arrival of the objects, monotonic seconds.
    """

    object_id: str
    tree: ObjectTree
    source: int
    end: float


@dataclass(frozen=True)
class _SentMessage:
    """A message without a reply so far.

    Attributes:
        empty: the message without its content.
        end: end of the time to live, monotonic seconds.
        activated: time at which the node had connected when the message was sent; empty if unknown.
    """

    empty: Message
    end: float
    activated: str


class GuardedGrid(DelegatingGrid):
    """A grid that attributes each reply to the node it asked, and turns broken replies into errors.

    Args:
        grid: Flower's grid of a ServerApp.
    """

    def __init__(self, grid: "HttpGrid") -> None:
        super().__init__(grid)
        self._http_grid = grid
        self._sent: dict[str, _SentMessage] = {}  # by message id
        # Replies with missing objects, by id of the message they answer.
        self._announced: dict[str, _AnnouncedReply] = {}
        # Fetched replies, whose objects the SuperLink may delete.
        self._fetched: list[_AnnouncedReply] = []
        self._nodes: dict[int, NodeInfo] = {}  # by node id
        self._nodes_known = -math.inf  # monotonic seconds

    def connected_nodes(self) -> dict[int, bytes]:
        """Return the public key (PEM) of every node that was connected within the last second.

        The key is empty for nodes without a key. The list is also refreshed after a message that
        did not reach its node, and after an error reply.
        """
        if time.monotonic() > self._nodes_known + _KNOWN_SECONDS:
            self._ask_for_nodes()
        return {node_id: node.public_key for node_id, node in self._nodes.items()}

    def _ask_for_nodes(self) -> None:
        self._nodes = {node.node_id: node for node in self._http_grid.get_nodes()}
        self._nodes_known = time.monotonic()

    def _forget_nodes(self) -> None:
        self._nodes_known = -math.inf

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages and return their ids; an id is empty if its message could not be sent."""
        message_ids = self._push(list(messages))
        if not all(message_ids):
            self._forget_nodes()
        self._confirm()
        return message_ids

    def _push(self, messages: list[Message]) -> list[str]:
        message_ids = list(self._grid.push_messages(messages))
        if len(message_ids) != len(messages):  # Flower logs the reason
            return [""] * len(messages)
        now = time.monotonic()
        self._sent = {
            i: sent for i, sent in self._sent.items() if now < sent.end + _EXPIRED_SECONDS
        }
        self._announced = {i: reply for i, reply in self._announced.items() if i in self._sent}
        for message, message_id in zip(messages, message_ids, strict=True):
            if message_id:
                node = self._nodes.get(message.metadata.dst_node_id)
                self._sent[message_id] = _SentMessage(
                    _without_content(message, message_id),
                    now + message.metadata.ttl,
                    node.last_activated_at if node else "",
                )
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the complete replies to these messages; each reply is returned once.

        The SuperLink may delete the objects of fetched replies. The grid informs the SuperLink
        after the next messages have been sent, or when the grid is idle.
        """
        wanted = self._sent.keys() & set(message_ids)
        if new := sorted(wanted - self._announced.keys()):
            self._announced |= self._fetch_announced(new)
        replies = []
        for message_id in sorted(wanted):
            sent, announced = self._sent[message_id], self._announced.get(message_id)
            content = self._read_content(announced) if announced else self._lost_hello(sent)
            if content is None:
                continue
            del self._sent[message_id]
            if announced:
                del self._announced[message_id]
                self._fetched.append(announced)
            if isinstance(content, Error):
                self._forget_nodes()
            replies.append(Message(content, reply_to=sent.empty))
        if not replies:
            self._confirm()
            if time.monotonic() > self._nodes_known + _ASKED_SECONDS:
                self._ask_for_nodes()
        return replies

    def _lost_hello(self, sent: _SentMessage) -> Error | None:
        """Return an error for a hello request if its node has connected again since; else None.

        Other messages do not count as lost, because a node may connect again without a new process
        and still answer them. A second answer to a hello request does no harm.
        """
        node = self._nodes.get(sent.empty.metadata.dst_node_id)
        is_hello = sent.empty.metadata.message_type == MessageType.QUERY
        if is_hello and node and "" != sent.activated != node.last_activated_at:
            return Error(ErrorCode.NODE_UNAVAILABLE, "its node has connected again")
        return None

    def _fetch_announced(self, message_ids: list[str]) -> dict[str, _AnnouncedReply]:
        """Return the announced replies, by id of the message that they answer.

        If the SuperLink cannot answer a request for several replies, each half of the replies is
        requested separately. An unreadable reply therefore does not block other replies.

        Raises:
            httpx.HTTPError: if the SuperLink does not answer, or the run is over.
        """
        request = PullAppMessagesRequest(message_ids=message_ids)
        try:
            response = runtime_client(self._http_grid).PullMessages(request)
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if status < 500 and status != httpx.codes.REQUEST_ENTITY_TOO_LARGE:
                raise
            return self._fetch_in_halves(message_ids, error)
        end = time.monotonic() + _ARRIVAL_SECONDS
        replies = zip(response.messages_list, response.message_object_trees, strict=True)
        announced = {
            message.metadata.reply_to_message_id: _AnnouncedReply(
                message.metadata.message_id, tree, message.metadata.src_node_id, end
            )
            for message, tree in replies
        }
        return {i: reply for i, reply in announced.items() if i in message_ids}

    def _fetch_in_halves(
        self, message_ids: list[str], error: httpx.HTTPStatusError
    ) -> dict[str, _AnnouncedReply]:
        if len(message_ids) == 1:
            log.warning("the SuperLink cannot send a reply: %s", cut_foreign_text(str(error)))
            # has no objects and no time left, so that the next read turns it into an error reply
            return {message_ids[0]: _AnnouncedReply("", ObjectTree(), SUPERLINK_NODE_ID, 0.0)}
        middle = len(message_ids) // 2
        halves = message_ids[:middle], message_ids[middle:]
        return self._fetch_announced(halves[0]) | self._fetch_announced(halves[1])

    def _read_content(self, announced: _AnnouncedReply) -> RecordDict | Error | None:
        """Return a reply's content, an error for a broken reply, or None if objects are missing.

        Raises:
            httpx.TransportError: if the SuperLink does not answer.
        """
        try:
            message = self._inflate(announced)
        except ObjectPullError:
            if time.monotonic() < announced.end:
                return None
            # the node may not be at fault, so this code makes the caller request its hello again
            return Error(ErrorCode.MESSAGE_UNAVAILABLE, "its reply did not arrive completely")
        except httpx.TransportError:
            raise
        except Exception as error:  # a client's bytes can make Flower raise any exception
            reason = cut_foreign_text(f"its reply is broken: {type(error).__name__}: {error}")
            return Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
        if message.has_content():
            return message.content
        code = message.error.code
        reason = cut_foreign_text(message.error.reason or "")
        if announced.source != SUPERLINK_NODE_ID and code in LOST:
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION  # only the SuperLink loses messages
        return Error(code, reason)

    def _inflate(self, announced: _AnnouncedReply) -> Message:
        """Decode a reply as its sender wrote it.

        Raises:
            ObjectPullError: if one of its objects has not arrived.
            Exception: of any type, if the reply's bytes are not a message.
        """
        object_ids = [part.object_id for part in iterate_object_tree(announced.tree)]
        if len(object_ids) > MAX_OBJECTS:
            raise FrameError(f"it has {len(object_ids)} objects, more than {MAX_OBJECTS}")
        contents = pull_objects(object_ids, self._pull_object, max_tries_per_object=1)
        if sum(map(len, contents.values())) > MAX_OBJECT_BYTES:
            raise FrameError(f"it is longer than {MAX_OBJECT_BYTES} bytes")
        message = inflate_object_from_contents(announced.object_id, contents)
        if not isinstance(message, Message):
            raise FrameError("it is not a message")
        return message

    def _pull_object(self, object_id: str) -> bytes:
        request = PullObjectRequest(
            node=self._http_grid.node, run_id=self.run.run_id, object_id=object_id
        )
        response = runtime_client(self._http_grid).PullObject(request)
        if not response.object_available:
            raise ObjectUnavailableError(object_id)
        return response.object_content

    def _confirm(self) -> None:
        """Let the SuperLink delete the objects of fetched replies, including broken replies."""
        while self._fetched:
            request = ConfirmMessageReceivedRequest(
                node=self._http_grid.node,
                run_id=self.run.run_id,
                message_object_id=self._fetched.pop().object_id,
            )
            with suppress(httpx.HTTPStatusError):
                runtime_client(self._http_grid).ConfirmMessageReceived(request)


def _without_content(message: Message, message_id: str) -> Message:
    """Return a message without content, with the same destination, type and times.

    The grid creates replies to this message.
    """
    metadata = message.metadata
    empty = Message(
        RecordDict(),
        metadata.dst_node_id,
        metadata.message_type,
        ttl=metadata.ttl,
        group_id=metadata.group_id,
    )
    set_message_id(empty, message_id)
    return empty
