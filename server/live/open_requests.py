"""Requests that the server has sent to nodes, and the replies that nodes may push.

Flower stores all pushes of nodes without a check: messages that answer no request, several replies
to one request, and objects that nobody fetches. `OpenRequests` allows a push only if it belongs to
a reply to one of the server's own requests.
"""

import hashlib
import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from samara.shared.flower_compat import SUPERLINK_NODE_ID, iterate_object_tree

if TYPE_CHECKING:
    from samara.shared.flower_compat import (
        ObjectTree,
        PushAppMessagesRequest,
        PushMessagesRequest,
        PushObjectRequest,
    )

MAX_OBJECTS = 8
"""Maximum number of objects in a reply; a valid reply has three: message, records, one record."""
MAX_ANNOUNCEMENTS = 3
"""Maximum number of reply announcements per request; a node that retries announces again."""
MAX_MESSAGE_BYTES = 2**16
"""Maximum size in bytes of a reply's announcement, which contains metadata and an error text."""
_TTL_TOLERANCE_SECONDS = 60.0
MAX_NODE_BYTES = 64 * 2**20
"""Maximum size of the objects of one node that the ServerApp has not fetched yet, in bytes."""
_EXPIRED_SECONDS = 3600.0
"""Time for which a request is remembered after its time to live, in seconds."""


class PushError(Exception):
    """Raised for a push that no honest node would send; the message gives the reason."""


class UnknownRequestError(Exception):
    """Raised for a push that answers no open request; Flower would accept it and store nothing."""


@dataclass
class _OpenRequest:
    """A request that the server has sent.

    Attributes:
        node: node that received the request.
        ttl: time to live of the request, in seconds.
        end: time at which the request is forgotten, monotonic seconds.
        announcements: number of announcements of a reply to the request.
        stored_bytes: bytes of the reply's stored objects.
    """

    node: int
    ttl: float
    end: float
    announcements: int = 0
    stored_bytes: int = 0


class OpenRequests:
    """The requests of a SuperLink's run that nodes may still answer.

    Args:
        max_reply_bytes: maximum total size of a reply's objects, in bytes.
    """

    def __init__(self, max_reply_bytes: int) -> None:
        self._max_reply_bytes = max_reply_bytes
        self._open: dict[str, _OpenRequest] = {}
        self._replies: dict[str, str] = {}  # request by id of the announced reply
        # Requests by node and id of an announced object that is not stored yet.
        self._missing: dict[tuple[int, str], _OpenRequest] = {}
        self._stored = Counter[int]()  # bytes not yet fetched, by node

    def clear(self) -> None:
        """Remove all requests, because a new run begins."""
        self._open, self._replies, self._missing, self._stored = {}, {}, {}, Counter()

    def add(self, sent: "PushAppMessagesRequest") -> None:
        """Add messages that the ServerApp has sent."""
        now = time.monotonic()
        self._open = {i: request for i, request in self._open.items() if now < request.end}
        self._replies = {
            i: request for i, request in self._replies.items() if request in self._open
        }
        self._missing = {i: request for i, request in self._missing.items() if now < request.end}
        for message in sent.messages_list:
            metadata = message.metadata
            self._open[metadata.message_id] = _OpenRequest(
                metadata.dst_node_id, metadata.ttl, now + metadata.ttl + _EXPIRED_SECONDS
            )

    def remove(self, reply_id: str) -> None:
        """Remove a request once the ServerApp has fetched the objects of its reply."""
        if request := self._open.pop(self._replies.pop(reply_id, ""), None):
            self._stored[request.node] -= request.stored_bytes

    def check_announcement(self, pushed: "PushMessagesRequest") -> None:
        """Check a node's announcement of a reply.

        Raises:
            PushError: if no honest node sends such an announcement.
            UnknownRequestError: if the announcement answers no open request to this node.
        """
        if len(pushed.messages_list) != 1 or len(pushed.message_object_trees) != 1:
            raise PushError("announced no message or several messages in one request")
        [message], [tree] = pushed.messages_list, pushed.message_object_trees
        metadata = message.metadata
        if not metadata.reply_to_message_id:
            raise PushError("sent a message that is not a reply")
        if metadata.src_node_id != pushed.node.node_id or metadata.dst_node_id != SUPERLINK_NODE_ID:
            raise PushError("sent a message in another node's name or to another node")
        if metadata.message_id != tree.object_id:
            raise PushError("announced a message without its objects")
        if not (0 < metadata.ttl < math.inf and math.isfinite(metadata.created_at)):
            raise PushError("sent a message with an impossible time to live")
        if not all(0 <= seconds < math.inf for seconds in pushed.clientapp_runtime_list):
            raise PushError("sent a running time that is negative or not finite")
        if message.ByteSize() > MAX_MESSAGE_BYTES:
            raise PushError(f"announced a message with over {MAX_MESSAGE_BYTES} bytes of text")
        if sum(1 for _ in _object_ids(tree)) > MAX_OBJECTS:
            raise PushError(f"announced a reply of over {MAX_OBJECTS} objects")
        request = self._open.get(metadata.reply_to_message_id)
        if request is None or request.node != metadata.src_node_id:
            raise UnknownRequestError
        if metadata.ttl > request.ttl + _TTL_TOLERANCE_SECONDS:
            raise PushError("sent a message with a longer time to live than its request has")
        if request.announcements >= MAX_ANNOUNCEMENTS:
            raise PushError(f"announced a reply over {MAX_ANNOUNCEMENTS} times")

    def add_announcement(self, pushed: "PushMessagesRequest") -> None:
        """Add a checked announcement that Flower has accepted from this node."""
        metadata = pushed.messages_list[0].metadata
        request = self._open.get(metadata.reply_to_message_id)
        if request is None:
            return
        request.announcements += 1
        if request.announcements == 1:  # only the first reply counts, as in Flower
            self._replies[metadata.message_id] = metadata.reply_to_message_id
            for object_id in _object_ids(pushed.message_object_trees[0]):
                self._missing[request.node, object_id] = request

    def check_object(self, pushed: "PushObjectRequest") -> None:
        """Check an object that a node sends.

        Raises:
            PushError: if no honest node sends such an object, or if the node's objects have too
                many bytes.
            UnknownRequestError: if no reply of this node lacks the object.
        """
        request = self._missing.get((pushed.node.node_id, pushed.object_id))
        if request is None:
            raise UnknownRequestError
        size = len(pushed.object_content)
        if hashlib.sha256(pushed.object_content).hexdigest() != pushed.object_id:
            raise PushError("sent an object whose hash differs from its name")
        if request.stored_bytes + size > self._max_reply_bytes:
            raise PushError(f"sent a reply of over {self._max_reply_bytes} bytes")
        if self._stored[request.node] + size > MAX_NODE_BYTES:
            raise PushError(f"has sent over {MAX_NODE_BYTES} bytes that the server has not fetched")

    def add_object(self, pushed: "PushObjectRequest") -> None:
        """Add a checked object that Flower has stored."""
        request = self._missing.pop((pushed.node.node_id, pushed.object_id), None)
        if request is not None:
            request.stored_bytes += len(pushed.object_content)
            self._stored[request.node] += len(pushed.object_content)


def _object_ids(tree: "ObjectTree") -> Iterator[str]:
    return (part.object_id for part in iterate_object_tree(tree))
