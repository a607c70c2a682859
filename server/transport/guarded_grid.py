"""A grid that takes nothing from a reply but its content.

A reply names its sender and the message that it answers, in bytes that the sender wrote. Here both
come from the server's own table of the messages that it sent, and every reply is fetched and
decoded on its own: one that is broken becomes an error reply of its sender, and the others are
unaffected. Flower's own `Grid.pull_messages` decodes all replies together, so that one whose parts
do not fit raises an exception in place of all of them.
"""

import logging
import math
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
from flwr.app import Error, Message, RecordDict

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
    from samara.shared.flower_compat import HttpGrid

log = logging.getLogger("samara.server")

MAX_OBJECTS = 8
"""Most objects of a reply; a sound one has three: message, records, and one record."""
MAX_OBJECT_BYTES = 64 * 2**20
"""Most bytes of all objects of a reply; the access filter allows clients far fewer."""
_KNOWN_SECONDS, _ASKED_SECONDS = 1.0, 0.5
"""Time for which the connected nodes count as known, and after which they are asked for anew while
there is nothing else to do."""
_ARRIVAL_SECONDS = 10.0
"""Time for the objects of a reply that has been announced."""
_EXPIRED_SECONDS = 3600.0
"""Time after the end of a message's time to live for which it stays in the table."""


@dataclass(frozen=True)
class _AnnouncedReply:
    """A reply that the SuperLink has handed out.

    Attributes:
        object_id: Flower's id of the reply.
        tree: the ids of its objects.
        source: the node that the SuperLink has it from.
        end: when its objects are no longer waited for, monotonic seconds.
    """

    object_id: str
    tree: ObjectTree
    source: int
    end: float


class GuardedGrid(DelegatingGrid):
    """A grid whose replies are from the node that was asked, and broken ones are errors.

    Args:
        grid: Flower's grid of a ServerApp.
    """

    def __init__(self, grid: "HttpGrid") -> None:
        super().__init__(grid)
        self._http_grid = grid
        # An empty message to the same node by the id of each message that is not answered, and
        # the end of its time to live, monotonic seconds.
        self._sent: dict[str, tuple[Message, float]] = {}
        # Replies whose objects have not all arrived, by the id of the message that they answer.
        self._announced: dict[str, _AnnouncedReply] = {}
        # Replies that were fetched, whose objects the SuperLink may delete.
        self._fetched: list[_AnnouncedReply] = []
        self._nodes: dict[int, bytes] = {}
        self._nodes_known = -math.inf  # monotonic seconds

    def connected_nodes(self) -> dict[int, bytes]:
        """Return the public key (PEM) of every node that was connected within the last second.

        It is empty for nodes without one. After a message that did not reach its node, or an error
        in place of a reply, they are asked for anew.
        """
        if time.monotonic() > self._nodes_known + _KNOWN_SECONDS:
            self._ask_for_nodes()
        return dict(self._nodes)

    def _ask_for_nodes(self) -> None:
        self._nodes = {node.node_id: node.public_key for node in self._http_grid.get_nodes()}
        self._nodes_known = time.monotonic()

    def _forget_nodes(self) -> None:
        self._nodes_known = -math.inf

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages and return their ids; empty for those that could not be sent."""
        message_ids = self._push(list(messages))
        if not all(message_ids):
            self._forget_nodes()
        self._confirm()
        return message_ids

    def _push(self, messages: list[Message]) -> list[str]:
        message_ids = list(self._grid.push_messages(messages))
        if len(message_ids) != len(messages):  # Flower logs why it sent none
            return [""] * len(messages)
        now = time.monotonic()
        self._sent = {i: sent for i, sent in self._sent.items() if now < sent[1] + _EXPIRED_SECONDS}
        self._announced = {i: reply for i, reply in self._announced.items() if i in self._sent}
        for message, message_id in zip(messages, message_ids, strict=True):
            if message_id:
                end = now + message.metadata.ttl
                self._sent[message_id] = _without_content(message, message_id), end
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that have arrived whole, each once.

        The SuperLink is told of them when the next messages have been sent, or when nothing comes.
        """
        wanted = self._sent.keys() & set(message_ids)
        if new := sorted(wanted - self._announced.keys()):
            self._announced |= self._fetch_announced(new)
        replies = []
        for message_id in sorted(wanted & self._announced.keys()):
            announced = self._announced[message_id]
            sent, _ = self._sent[message_id]
            content = self._read_content(announced)
            if content is not None:
                del self._announced[message_id], self._sent[message_id]
                self._fetched.append(announced)
                if isinstance(content, Error):
                    self._forget_nodes()
                replies.append(Message(content, reply_to=sent))
        if not replies:
            self._confirm()
            if time.monotonic() > self._nodes_known + _ASKED_SECONDS:
                self._ask_for_nodes()
        return replies

    def _fetch_announced(self, message_ids: list[str]) -> dict[str, _AnnouncedReply]:
        """Return the replies that the SuperLink has, by the id of the message that they answer.

        A batch that the SuperLink cannot answer is requested in halves, so that one reply which it
        cannot read does not keep the others.

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
            log.warning("the SuperLink cannot hand out a reply: %s", cut_foreign_text(str(error)))
            # without objects and without time for them to arrive: an error reply follows
            return {message_ids[0]: _AnnouncedReply("", ObjectTree(), SUPERLINK_NODE_ID, 0.0)}
        middle = len(message_ids) // 2
        halves = message_ids[:middle], message_ids[middle:]
        return self._fetch_announced(halves[0]) | self._fetch_announced(halves[1])

    def _read_content(self, announced: _AnnouncedReply) -> RecordDict | Error | None:
        """Return what a reply holds, an error if it is broken, or None if parts are to come.

        Raises:
            httpx.TransportError: if the SuperLink does not answer.
        """
        try:
            message = self._inflate(announced)
        except ObjectPullError:
            if time.monotonic() < announced.end:
                return None
            # not the node's fault for certain, so that its hello is requested again
            return Error(ErrorCode.MESSAGE_UNAVAILABLE, "its reply did not arrive whole")
        except httpx.TransportError:
            raise
        except Exception as error:  # whatever bytes of a client make Flower raise
            reason = cut_foreign_text(f"its reply is broken: {type(error).__name__}: {error}")
            return Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
        if message.has_content():
            return message.content
        code, reason = message.error.code, cut_foreign_text(message.error.reason or "")
        if announced.source != SUPERLINK_NODE_ID and code in LOST:
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION  # only the SuperLink loses messages
        return Error(code, reason)

    def _inflate(self, announced: _AnnouncedReply) -> Message:
        """Return a reply as its sender wrote it.

        Raises:
            ObjectPullError: if one of its objects has not arrived.
            Exception: if its bytes are no message.
        """
        object_ids = [part.object_id for part in iterate_object_tree(announced.tree)]
        if len(object_ids) > MAX_OBJECTS:
            raise FrameError(f"it has {len(object_ids)} objects, more than {MAX_OBJECTS}")
        contents = pull_objects(object_ids, self._pull_object, max_tries_per_object=1)
        if sum(map(len, contents.values())) > MAX_OBJECT_BYTES:
            raise FrameError(f"it is longer than {MAX_OBJECT_BYTES} bytes")
        message = inflate_object_from_contents(announced.object_id, contents)
        if not isinstance(message, Message):
            raise FrameError("it is no message")
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
        """Have the SuperLink delete the objects of fetched replies, also of broken ones."""
        while self._fetched:
            request = ConfirmMessageReceivedRequest(
                node=self._http_grid.node,
                run_id=self.run.run_id,
                message_object_id=self._fetched.pop().object_id,
            )
            with suppress(httpx.HTTPStatusError):
                runtime_client(self._http_grid).ConfirmMessageReceived(request)


def _without_content(message: Message, message_id: str) -> Message:
    """Return a message with the same destination, type and times, which replies are made to."""
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
