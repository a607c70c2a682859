"""Limits on the bytes that a SuperNode accepts from its server, counted as they arrive.

Flower reads all bytes from a server into memory, without a limit. Here the kind of a message limits
its bytes (`samara.shared.protocol.message_sizes`). The kind is known before the message's parts are
fetched. App bundles and other answers may have a few MiB. Reading stops at the limit.
"""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from samara.shared.errors import DeviceError, LayoutError
from samara.shared.proto.trainer_pb2 import TaskKind
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.message_sizes import most_message_bytes

MOST_PARTS = 8
"""Maximum number of parts of a message; a valid message has three parts."""
MOST_BUNDLE_BYTES = 16 * 2**20
"""Limit in bytes on all app bundles over the life of a SuperNode, which keeps them."""
MOST_ANSWER_BYTES = 2**20
"""Limit in bytes on an answer that is neither a part of a message nor a bundle."""
_PART_PATH = "/v1/fleet/pull-object"
_BUNDLE_PATH = "/v1/fleet/get-fab"
_KINDS = {
    "query": TaskKind.HELLO,
    "query.blob": TaskKind.BLOB,
    "query.masking": TaskKind.MASK,
    "query.refused": TaskKind.REFUSED,
    "train": TaskKind.TRAIN,
    "evaluate": TaskKind.EVALUATE,
    "evaluate.personal": TaskKind.EVALUATE,
}


def most_client_message_bytes(kind: TaskKind, folder: Path) -> int:
    """Return the size limit in bytes of a message to a client; see `most_message_bytes`.

    Args:
        kind: kind of the message.
        folder: folder of the client.
    """
    return most_message_bytes(kind, largest_state(folder))


def largest_state(folder: Path) -> int:
    """Return the elements of the largest state of a client's runs; 0 before the first run.

    Args:
        folder: folder of the client.
    """
    sizes = [0]
    for file in folder.glob("runs/*/run.json"):
        try:
            sizes.append(Layout.from_json(json.loads(file.read_bytes())["layout"]).size)
        except (OSError, ValueError, LookupError, TypeError, LayoutError):
            continue  # the next hello replaces a damaged file
    return max(sizes)


class ReceivedBytes:
    """Counters of the bytes that may still be received.

    Args:
        most: function that returns the size limit in bytes for a kind of message.
    """

    def __init__(self, most: Callable[[TaskKind], int]) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._left = {_PART_PATH: 0, _BUNDLE_PATH: MOST_BUNDLE_BYTES}

    def begin(self, message_type: str, parts: int) -> None:
        """Allow the bytes of a message.

        Nothing is allowed if the kind of the message is unknown or it has too many parts.

        Args:
            message_type: Flower's message type, with an action.
            parts: number of parts of the message.
        """
        kind = _KINDS.get(message_type)
        most = 0
        if kind is not None and parts <= MOST_PARTS:
            most = self._most(kind)
        with self._lock:
            self._left[_PART_PATH] = most

    def limit(self, path: str, stream: httpx.SyncByteStream) -> httpx.SyncByteStream:
        """Wrap the stream of an answer so that it raises an error when it is too long.

        Args:
            path: path of the request.
            stream: bytes of the answer.
        """
        if path not in self._left:
            left = {path: MOST_ANSWER_BYTES}
            return _CountedStream(stream, lambda size: self._take(left, path, size))
        return _CountedStream(stream, lambda size: self._take(self._left, path, size))

    def _take(self, left: dict[str, int], path: str, size: int) -> None:
        """Count bytes against the limits.

        Raises:
            DeviceError: if more bytes arrive than allowed.
        """
        with self._lock:
            if size > left[path]:
                raise DeviceError(f"the server's answer to {path} exceeds its size limit")
            left[path] -= size


class _CountedStream(httpx.SyncByteStream):
    """A stream whose bytes count against the limits when they arrive.

    If the stream breaks off, its bytes are subtracted again, because a retry receives them again.
    """

    def __init__(self, stream: httpx.SyncByteStream, count: Callable[[int], None]) -> None:
        self._stream = stream
        self._count = count
        self._counted = 0

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes in pieces.

        Raises:
            DeviceError: at the first piece that exceeds the limit.
        """
        for piece in self._stream:
            self._count(len(piece))
            self._counted += len(piece)
            yield piece
        self._counted = 0

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()
        self._count(-self._counted)  # a retry receives these bytes again
        self._counted = 0


def limit_received(received: ReceivedBytes) -> None:
    """Limit the size of HTTP answers that this process reads.

    Compressed answers are neither requested nor read, because a short compressed answer may contain
    very many bytes.
    """
    handle = httpx.HTTPTransport.handle_request

    def limited(transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        request.headers["accept-encoding"] = "identity"
        response = handle(transport, request)
        if response.headers.get("content-encoding", "identity") != "identity":
            response.close()
            raise DeviceError(f"the server's answer to {request.url.path} is compressed")
        if isinstance(response.stream, httpx.SyncByteStream):
            response.stream = received.limit(request.url.path, response.stream)
        return response

    httpx.HTTPTransport.handle_request = limited  # type: ignore[assignment, method-assign]
