"""The bytes that a SuperNode takes from its server, counted while they arrive.

Flower reads whatever a server sends into memory, and then into that of the process that answers. A
message may have the bytes of its kind (`samara.shared.message_sizes`), which is known before its
parts are fetched; an app bundle, and any other answer, a few MiB. Reading ends where one is longer.
"""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from samara.shared.errors import DeviceError, LayoutError
from samara.shared.layout import Layout
from samara.shared.message_sizes import most_message_bytes
from samara.shared.proto.trainer_pb2 import TaskKind

MOST_PARTS = 8
"""The most parts of a message; a sound one has three."""
MOST_BUNDLE_BYTES = 16 * 2**20
"""The most bytes of the app bundles of servers in the life of a SuperNode, which keeps them."""
MOST_ANSWER_BYTES = 2**20
"""The most bytes of an answer that is neither a part of a message nor a bundle."""
_PART_PATH, _BUNDLE_PATH = "/v1/fleet/pull-object", "/v1/fleet/get-fab"
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
    """Return the most bytes of a message to a client; see `most_message_bytes`.

    Args:
        kind: kind of the message.
        folder: folder of the client.
    """
    return most_message_bytes(kind, largest_state(folder))


def largest_state(folder: Path) -> int:
    """Return the elements of the largest state of a client's runs; 0 before the first one.

    Args:
        folder: folder of the client.
    """
    sizes = [0]
    for file in folder.glob("runs/*/run.json"):
        try:
            sizes.append(Layout.from_json(json.loads(file.read_bytes())["layout"]).size)
        except (OSError, ValueError, LookupError, TypeError, LayoutError):
            continue  # a damaged one is written again with the next hello
    return max(sizes)


class ReceivedBytes:
    """The bytes that may yet be received.

    Args:
        most: function that returns the most bytes of a message of a kind.
    """

    def __init__(self, most: Callable[[TaskKind], int]) -> None:
        self._most, self._lock = most, threading.Lock()
        self._left = {_PART_PATH: 0, _BUNDLE_PATH: MOST_BUNDLE_BYTES}

    def begin(self, message_type: str, parts: int) -> None:
        """Allow the bytes of a message; none if there is no such kind, or it has too many parts.

        Args:
            message_type: Flower's message type, with an action.
            parts: number of its parts.
        """
        kind = _KINDS.get(message_type)
        most = 0
        if kind is not None and parts <= MOST_PARTS:
            most = self._most(kind)
        with self._lock:
            self._left[_PART_PATH] = most

    def limit(self, path: str, stream: httpx.SyncByteStream) -> httpx.SyncByteStream:
        """Return the stream of an answer to a request, which raises where it is too long.

        Args:
            path: path of the request.
            stream: the answer's bytes.
        """
        if path not in self._left:
            left = {path: MOST_ANSWER_BYTES}
            return _CountedStream(stream, lambda size: self._take(left, path, size))
        return _CountedStream(stream, lambda size: self._take(self._left, path, size))

    def _take(self, left: dict[str, int], path: str, size: int) -> None:
        """Count bytes.

        Raises:
            DeviceError: if they are more than may be received.
        """
        with self._lock:
            if size > left[path]:
                raise DeviceError(f"the server's answer to {path} is longer than it may be")
            left[path] -= size


class _CountedStream(httpx.SyncByteStream):
    """A stream of bytes that are counted before they are handed on, and not if it breaks off."""

    def __init__(self, stream: httpx.SyncByteStream, count: Callable[[int], None]) -> None:
        self._stream, self._count, self._counted = stream, count, 0

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes in pieces.

        Raises:
            DeviceError: at the first piece with which they are too many.
        """
        for piece in self._stream:
            self._count(len(piece))
            self._counted += len(piece)
            yield piece
        self._counted = 0

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()
        self._count(-self._counted)  # whoever asks again gets them again
        self._counted = 0


def limit_received(received: ReceivedBytes) -> None:
    """Have this process read no more of answers over HTTP than it may.

    Compressed answers are neither asked for nor read: their length says little.
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
