"""Blob part and blob receipt: the frames with which a file is sent to a client."""

import struct
from dataclasses import dataclass
from typing import ClassVar, Self

from samara.shared.errors import FrameError
from samara.shared.protocol.wire import Kind, Reader, check_client_index, pack, unpack
from samara.shared.storage.blob_store import MAX_BLOB_BYTES

PART_BYTES = 4 * 2**20
"""Largest number of bytes in a blob part; an interrupted transfer loses at most one part."""


@dataclass(frozen=True)
class BlobPart:
    """A piece of a blob, sent from the server to a client.

    Attributes:
        blob: SHA-256 of the whole blob, 32 bytes.
        size: size of the whole blob in bytes.
        offset: position of the piece in the blob.
        content: bytes of the piece, 1 to `PART_BYTES`.
    """

    blob: bytes
    size: int
    offset: int
    content: bytes

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<32sIII")

    def encode(self) -> bytes:
        """Encode the blob part as a frame."""
        fields = self._FIELDS.pack(self.blob, self.size, self.offset, len(self.content))
        return pack(Kind.BLOB_PART, fields + self.content)

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode a blob part from a frame.

        Raises:
            FrameError: if the frame is not a valid blob part.
        """
        reader = Reader(unpack(frame, Kind.BLOB_PART))
        blob, size, offset, length = reader.fields(cls._FIELDS)
        if not (1 <= length <= PART_BYTES and offset + length <= size <= MAX_BLOB_BYTES):
            raise FrameError(
                f"a part of blob {blob.hex()[:12]} is out of range: {length} bytes at "
                f"offset {offset} of {size}"
            )
        part = cls(blob, size, offset, bytes(reader.take(length)))
        reader.end()
        return part


@dataclass(frozen=True)
class BlobReceipt:
    """A client's answer to a blob part.

    Attributes:
        token: token of the answered part, 8 bytes.
        client: client index.
        blob: SHA-256 of the whole blob, 32 bytes.
        received: number of bytes that the client has, which is the offset of the next part. It
            equals the blob's size once the blob is complete.
    """

    token: bytes
    client: int
    blob: bytes
    received: int

    _FIELDS: ClassVar[struct.Struct] = struct.Struct("<8sI32sI")

    def encode(self) -> bytes:
        """Encode the blob receipt as a frame."""
        fields = self._FIELDS.pack(self.token, self.client, self.blob, self.received)
        return pack(Kind.BLOB_RECEIPT, fields)

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode a blob receipt from a frame.

        Raises:
            FrameError: if the frame is not a valid blob receipt.
        """
        reader = Reader(unpack(frame, Kind.BLOB_RECEIPT))
        receipt = cls(*reader.fields(cls._FIELDS))
        reader.end()
        check_client_index(receipt.client)
        if receipt.received > MAX_BLOB_BYTES:
            raise FrameError(f"client {receipt.client} reports too many received bytes of a blob")
        return receipt
