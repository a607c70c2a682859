"""The envelope of every frame, and the reader that refuses to read past its end.

Every frame is little-endian and begins with 8 bytes: the letters ``SM``, the format version, the
kind, and a CRC-32 of those 4 bytes and all that follow. A frame is read whole or refused with a
`FrameError`: kind, length, checksum, counts and ranges are checked before a value is believed.
"""

import struct
import zlib
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import FrameError

FRAME_VERSION = 1
RECORD = "samara"
"""Of the one record in a Flower message: ``frame`` and, downward, ``snapshot`` and ``tail``."""
CLIENTS, FRAMES, PUBLIC_KEYS, SIGNATURES = "clients", "frames", "public-keys", "signatures"
"""In the record of a message to a gateway, and of its answer: an entry for every phone."""
PERSONAL_ACTION = "personal"
"""Of the evaluate messages that ask for the personal comparison."""
MAX_FRAME_BYTES = 64 * 2**20
MAX_TEXT_BYTES = 2**20
MAX_SCALARS = 2**20
"""Most scalars that one report or one group of a round delta may hold."""

_START = struct.Struct("<2sBB")
_PREFIX = struct.Struct("<2sBBI")
_MAGIC = b"SM"


_RETIRED_KINDS = {5: "report with seeds of its own", 7: "refusal with a text"}
"""Kinds of frames that earlier versions sent; their numbers are never used again."""


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


def pack(kind: Kind, body: bytes) -> bytes:
    """A frame of this kind around a body."""
    start = _START.pack(_MAGIC, FRAME_VERSION, kind)
    return start + struct.pack("<I", zlib.crc32(body, zlib.crc32(start))) + body


def kind_of(frame: bytes) -> Kind:
    """Check a frame's prefix and checksum and tell its kind.

    Raises:
        FrameError: if it is too short or long, foreign, of another version, or damaged.
    """
    if not _PREFIX.size <= len(frame) <= MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {len(frame)} bytes is truncated or over {MAX_FRAME_BYTES}")
    magic, version, kind, checksum = _PREFIX.unpack_from(frame)
    if magic != _MAGIC:
        raise FrameError("the bytes do not begin with SM: not a Samara frame")
    if version != FRAME_VERSION:
        raise FrameError(
            f"frame version {version} is not {FRAME_VERSION}; update the older side of the two"
        )
    if checksum != zlib.crc32(frame[_PREFIX.size :], zlib.crc32(frame[: _START.size])):
        raise FrameError("the frame's checksum is wrong: it was truncated or damaged on its way")
    if kind in _RETIRED_KINDS:
        raise FrameError(
            f"frame kind {kind} ({_RETIRED_KINDS[kind]}) is retired; update the side that sent it"
        )
    try:
        return Kind(kind)
    except ValueError:
        raise FrameError(f"frame kind {kind} is unknown to this version") from None


def unpack(frame: bytes, *kinds: Kind) -> memoryview:
    """The body of a frame that must be of one of these kinds.

    Raises:
        FrameError: if it is not, or is damaged.
    """
    if (kind := kind_of(frame)) not in kinds:
        expected = " or ".join(k.name.lower() for k in kinds)
        raise FrameError(f"expected a {expected} frame and got a {kind.name.lower()} frame")
    return memoryview(frame)[_PREFIX.size :]


class Reader:
    """Takes typed pieces off a body and refuses to read past its end."""

    def __init__(self, body: memoryview) -> None:
        self._body, self._at = body, 0

    def take(self, size: int) -> memoryview:
        """The next bytes."""
        if self._at + size > len(self._body):
            raise FrameError(f"the frame is truncated: {size} more bytes were announced")
        piece = self._body[self._at : self._at + size]
        self._at += size
        return piece

    def fields(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The next fixed fields."""
        return layout.unpack(self.take(layout.size))

    def array(self, dtype: str, count: int) -> NDArray[Any]:
        """The next numbers, in the machine's byte order."""
        size = np.dtype(dtype).itemsize * count
        return np.frombuffer(self.take(size), dtype).astype(np.dtype(dtype).newbyteorder("="))

    def text(self) -> str:
        """The next text."""
        (size,) = struct.unpack("<I", self.take(4))
        if size > MAX_TEXT_BYTES:
            raise FrameError(f"a text of {size} bytes is over {MAX_TEXT_BYTES}")
        try:
            return bytes(self.take(size)).decode()
        except UnicodeDecodeError:
            raise FrameError("a text in the frame is not UTF-8") from None

    @property
    def left(self) -> int:
        """Bytes behind those taken."""
        return len(self._body) - self._at

    def end(self) -> None:
        """Refuse what follows the last field."""
        if self.left:
            raise FrameError(f"{self.left} bytes follow the end of the frame")


def encode_text(value: str) -> bytes:
    """A text as its length (uint32) and its UTF-8 bytes; `Reader.text` reads it back."""
    data = value.encode()
    return struct.pack("<I", len(data)) + data
