"""A snapshot: the state after a round, bound to the round's place in the hash chain.

Bytes, little-endian:

    "SAMARASN" · the rest of the identity 48 · link of the round 100 · d u32
    · SHA-256 of the preceding 160 bytes · state, d × int64

The link holds the end digest, which is the hash of the state, and its own hash is the record hash
that the next record continues from. So neither state nor round can be exchanged for others without
breaking the chain.
"""

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import LedgerError
from samara.shared.layout import Layout
from samara.shared.ledger.records import HASH_BYTES, IDENTITY_BYTES, LedgerHeader, Link, Position
from samara.shared.replay import digest

SNAPSHOT_MAGIC = b"SAMARASN"
_COUNT = struct.Struct("<I")
_FIELDS_BYTES = IDENTITY_BYTES + Link.FIELDS.size + _COUNT.size
_HEADER_BYTES = _FIELDS_BYTES + HASH_BYTES


class UnreadableError(LedgerError):
    """A file cannot be read, so that it is unknown whether it is sound."""


def snapshot_bytes(size: int) -> int:
    """Return the length of a snapshot of d elements, in bytes."""
    return _HEADER_BYTES + 8 * size


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state of a track after a round.

    Attributes:
        header: track, run and layout of the ledger.
        link: link of the round's record.
        state: state after the round, int64 [d], whose digest is in the link.
    """

    header: LedgerHeader
    link: Link
    state: NDArray[np.int64]

    @property
    def position(self) -> Position:
        """The position after the round."""
        return self.link.position

    def parts(self) -> tuple[bytes, memoryview]:
        """Return the snapshot's bytes in two pieces, of which the state is not copied."""
        fields = self.header.encode(SNAPSHOT_MAGIC) + self.link.encode()
        fields += _COUNT.pack(len(self.state))
        state = np.ascontiguousarray(self.state, "<i8")
        return fields + hashlib.sha256(fields).digest(), state.data.cast("B")

    @classmethod
    def decode(cls, data: bytes, header: LedgerHeader, layout: Layout) -> Self:
        """Read a snapshot that must be of this ledger.

        Args:
            data: bytes from a file or from the network.
            header: track, run and layout that it must have.
            layout: layout of the adapter.

        Returns:
            The snapshot; its state reads `data` in place.

        Raises:
            LedgerError: if it is damaged, of another ledger, or its state has another digest
                than its round ended with.
        """
        if len(data) != snapshot_bytes(layout.size):
            raise LedgerError(
                f"a snapshot of {layout.size} elements has {snapshot_bytes(layout.size)} bytes, "
                f"not {len(data)}"
            )
        fields, checksum = data[:_FIELDS_BYTES], data[_FIELDS_BYTES:_HEADER_BYTES]
        if hashlib.sha256(fields).digest() != checksum:
            raise LedgerError("the snapshot's header is damaged")
        if LedgerHeader.decode(fields, SNAPSHOT_MAGIC) != header:
            raise LedgerError("the snapshot is of another run, track or layout")
        link = Link(*Link.FIELDS.unpack_from(fields, IDENTITY_BYTES))
        (count,) = _COUNT.unpack_from(fields, IDENTITY_BYTES + Link.FIELDS.size)
        if link.round < 1 or count != layout.size:
            raise LedgerError(f"the snapshot is of round {link.round} and {count} elements")
        state = np.frombuffer(data, "<i8", offset=_HEADER_BYTES).astype(np.int64, copy=False)
        if digest(layout.hash, state) != link.end_digest:
            raise LedgerError(f"the snapshot's state is not that which ended round {link.round}")
        return cls(header, link, state)


def read_snapshot(path: Path, header: LedgerHeader, layout: Layout) -> Snapshot:
    """Read a snapshot file, whose name is its round.

    Raises:
        UnreadableError: naming the file, if it cannot be read.
        LedgerError: naming the file, if it is no sound snapshot of this ledger.
    """
    try:
        with path.open("rb") as file:
            snapshot = Snapshot.decode(file.read(snapshot_bytes(layout.size) + 1), header, layout)
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be read: {error.strerror}") from error
    except LedgerError as error:
        raise LedgerError(f"{path}: {error}") from error
    if int(path.stem) != snapshot.link.round:
        raise LedgerError(f"{path}: it is the snapshot of round {snapshot.link.round}")
    return snapshot
