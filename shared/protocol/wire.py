"""The envelope of every frame, and a reader of frame bodies that checks their length.

Every frame is little-endian and begins with 8 bytes: the letters ``SM``, the format version, the
kind, and a CRC-32 of those 4 bytes and everything after the checksum. A decoder checks kind,
length, checksum, counts and ranges. At the first mistake it raises `FrameError`.
"""

import struct
import zlib
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import FrameError
from samara.shared.protocol.client_index import MAX_CLIENT

FRAME_VERSION = 1
RECORD = "samara"
"""Key of the single record in a Flower message.

The record holds ``frame``. A message to a client also holds ``snapshot`` and ``tail``. A message
with a report may hold `COST`.
"""
SHARES = "shares"
"""Key of the sealed shares (a frame) in the record of a train instruction with masks.

In a message to a gateway the value is a list with one frame per phone.
"""
COST = "cost"
"""Key of a round cost (a frame) in the record of a report.

Servers of earlier versions ignore the key.
"""
CLIENTS, FRAMES, PUBLIC_KEYS, SIGNATURES = "clients", "frames", "public-keys", "signatures"
"""Keys of a gateway's record whose values are lists with one entry per phone."""
KNOWN, ATTACHED, SESSION = "known", "attached", "session"
"""Keys for the hellos of a gateway's phones and boards.

In the request, `KNOWN` lists the numbers of phones whose hello the server has. In the reply,
`ATTACHED` lists the phones that are still attached, and `SESSION` holds random bytes of the
gateway's process.
"""
IN_PARTS, PENDING = "in-parts", "pending"
"""Keys for incomplete replies of a gateway.

In the message, `IN_PARTS` says whether the gateway may reply before all answers have arrived. In
the reply, `PENDING` lists the numbers of phones and boards whose answers are missing, because they
have not arrived or did not fit.
"""
BLOB_ACTION = "blob"
"""Action of query messages that carry a part of a blob."""
MASKING_ACTION = "masking"
"""Action of query messages of secure aggregation (`samara.shared.protocol.frames.masking`)."""
REFUSED_ACTION = "refused"
"""Action of query messages that tell a client why the server refuses it."""
PERSONAL_ACTION = "personal"
"""Action of evaluate messages that request the personal comparison."""
MAX_FRAME_BYTES = 64 * 2**20
MAX_TEXT_BYTES = 2**20
MAX_SCALARS = 2**20
"""Largest number of scalars in one report or in one group of a round delta."""

_START = struct.Struct("<2sBB")
_PREFIX = struct.Struct("<2sBBI")
_MAGIC = b"SM"


_RETIRED_KINDS = {5: "report with its own seeds", 7: "refusal with a text"}
"""Numbers of frame kinds that only earlier versions used. No new kind gets such a number."""


class Kind(IntEnum):
    """The kind of a frame, its fourth byte; 5 and 7 are retired."""

    HELLO = 1
    TRAIN = 2
    EVALUATE = 3
    REPORT = 4
    EVALUATION = 6
    ROUND_DELTA = 8
    REPORT_OF_SUMS = 9
    REFUSAL = 10
    BLOB_PART = 11
    BLOB_RECEIPT = 12
    ROUND_COST = 13
    VECTOR_REPORT = 14
    NOISED_VECTOR_REPORT = 15
    KEY_REQUEST = 16
    MASKING_KEYS = 17
    KEY_LIST = 18
    SEALED_SHARES = 19
    MASKED_REPORT = 20
    SURVIVOR_LIST = 21
    SURVIVOR_SIGNATURE = 22
    SIGNATURE_LIST = 23
    REVEALED_SHARES = 24
    BUCKET_KEY_LIST = 25


def pack(kind: Kind, body: bytes) -> bytes:
    """Return a frame of a kind: its header, followed by the body."""
    start = _START.pack(_MAGIC, FRAME_VERSION, kind)
    return start + struct.pack("<I", zlib.crc32(body, zlib.crc32(start))) + body


def kind_of(frame: bytes) -> Kind:
    """Check a frame's prefix and checksum, and return its kind.

    Raises:
        FrameError: if the frame is too short or too long, is not a Samara frame, is damaged, or has
            another version or a retired kind.
    """
    if not _PREFIX.size <= len(frame) <= MAX_FRAME_BYTES:
        raise FrameError(
            f"a frame of {len(frame)} bytes is truncated or over the limit of {MAX_FRAME_BYTES}"
        )
    magic, version, kind, checksum = _PREFIX.unpack_from(frame)
    if magic != _MAGIC:
        raise FrameError("the bytes do not begin with SM: not a Samara frame")
    if version != FRAME_VERSION:
        raise FrameError(
            f"frame version {version} is not {FRAME_VERSION}; update the older side of the two"
        )
    if checksum != zlib.crc32(frame[_PREFIX.size :], zlib.crc32(frame[: _START.size])):
        raise FrameError("the frame's checksum is wrong: the frame was truncated or damaged")
    if kind in _RETIRED_KINDS:
        raise FrameError(
            f"frame kind {kind} ({_RETIRED_KINDS[kind]}) is retired; update the side that sent it"
        )
    try:
        return Kind(kind)
    except ValueError:
        raise FrameError(f"frame kind {kind} is unknown to this version") from None


def unpack(frame: bytes, *kinds: Kind) -> memoryview:
    """Check that a frame is of one of these kinds, and return its body.

    Raises:
        FrameError: if the frame is of another kind, or damaged.
    """
    if (kind := kind_of(frame)) not in kinds:
        expected = " or ".join(k.name.lower() for k in kinds)
        raise FrameError(f"expected a {expected} frame and got a {kind.name.lower()} frame")
    return memoryview(frame)[_PREFIX.size :]


class Reader:
    """A reader of a frame body's fields; reading past the end raises `FrameError`."""

    def __init__(self, body: memoryview) -> None:
        self._body, self._at = body, 0

    def take(self, size: int) -> memoryview:
        """Return the next bytes."""
        if self._at + size > len(self._body):
            raise FrameError(f"the frame is truncated: {size} more bytes were announced")
        piece = self._body[self._at : self._at + size]
        self._at += size
        return piece

    def fields(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Return the next fields of fixed size."""
        return layout.unpack(self.take(layout.size))

    def array(self, dtype: str, count: int) -> NDArray[Any]:
        """Return the next numbers as an array in the machine's byte order."""
        size = np.dtype(dtype).itemsize * count
        return np.frombuffer(self.take(size), dtype).astype(np.dtype(dtype).newbyteorder("="))

    def text(self) -> str:
        """Return the next text."""
        (size,) = struct.unpack("<I", self.take(4))
        if size > MAX_TEXT_BYTES:
            raise FrameError(f"a text of {size} bytes is over {MAX_TEXT_BYTES}")
        try:
            return bytes(self.take(size)).decode()
        except UnicodeDecodeError:
            raise FrameError("a text in the frame is not UTF-8") from None

    @property
    def left(self) -> int:
        """The number of unread bytes."""
        return len(self._body) - self._at

    def end(self) -> None:
        """Check that no bytes follow the last field."""
        if self.left:
            raise FrameError(f"{self.left} bytes follow the end of the frame")


def check_client_index(client: int) -> None:
    """Check that a client index from a frame is not too large.

    Raises:
        FrameError: if the index exceeds `MAX_CLIENT`.
    """
    if client > MAX_CLIENT:
        raise FrameError(f"client index {client} is over {MAX_CLIENT}")


def encode_text(value: str) -> bytes:
    """Encode a text for `Reader.text`: its length (uint32) and UTF-8 bytes."""
    data = value.encode()
    return struct.pack("<I", len(data)) + data
