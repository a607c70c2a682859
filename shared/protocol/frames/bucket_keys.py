"""The key list of a round with buckets, and the digests from which the buckets are drawn."""

import struct
from dataclasses import dataclass
from typing import Self

from samara.shared.errors import FrameError
from samara.shared.protocol.frames.masking import KeyList
from samara.shared.protocol.secure_aggregation.buckets import DIGEST_BYTES, draw_buckets
from samara.shared.protocol.wire import Kind, Reader, pack, unpack

_COUNT = struct.Struct("<I")


@dataclass(frozen=True)
class BucketKeyList:
    """A key list for a round with buckets.

    Attributes:
        listed: key list with all clients that sent keys, and with the keys of the receiver's
            neighbours in its bucket.
        digests: digest of each client's keys, 32 bytes each, in the order of `listed.clients`.
    """

    listed: KeyList
    digests: tuple[bytes, ...]

    def bucket_of(self, client: int, size: int) -> KeyList:
        """Return the key list of a client's bucket.

        Args:
            client: client index.
            size: least number of clients in a bucket.

        Raises:
            FrameError: if the client is not listed, or keys do not match their digests.
        """
        known = dict(zip(self.listed.clients, self.digests, strict=True))
        if any(keys.digest != known[keys.client] for keys in self.listed.keys):
            raise FrameError("the keys in the key list do not match its digests")
        for bucket in draw_buckets(self.listed.token, known, size):
            if client in bucket:
                if not {keys.client for keys in self.listed.keys} <= set(bucket):
                    raise FrameError("the key list contains keys of clients in another bucket")
                return KeyList(self.listed.token, tuple(bucket), self.listed.keys)
        raise FrameError(f"no bucket of the round contains client {client}")

    def encode(self) -> bytes:
        """Encode the key list with buckets as a frame."""
        body = _COUNT.pack(len(self.digests)) + b"".join(self.digests)
        return pack(Kind.BUCKET_KEY_LIST, body + self.listed.encode())

    @classmethod
    def decode(cls, frame: bytes) -> Self:
        """Decode a key list with buckets from a frame.

        Raises:
            FrameError: if the frame is not a valid key list.
        """
        reader = Reader(unpack(frame, Kind.BUCKET_KEY_LIST))
        (count,) = reader.fields(_COUNT)
        digests = reader.take(count * DIGEST_BYTES)
        listed = KeyList.decode(bytes(reader.take(reader.left)))
        if len(listed.clients) != count:
            raise FrameError(f"the key list has {count} digests for {len(listed.clients)} clients")
        starts = range(0, len(digests), DIGEST_BYTES)
        return cls(listed, tuple(bytes(digests[at : at + DIGEST_BYTES]) for at in starts))
