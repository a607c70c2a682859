"""The binary format of a ledger, whose records form a hash chain, and the replay of records.

Numbers are little-endian (docs/reference/ledger.md has the tables):

    identity        "SAMARALG" · version u16 · 2 zero bytes · track u32 · run id 8 · layout hash 32
    segment header  identity · round before u32 · record hash of that round 32
                    · SHA-256 of the preceding 92 bytes
    contributors    "SMLC" · length n u32 · round u32 · CRC-32 of the preceding 12 bytes
                    · n bytes: token 8 · per contributor client u32, examples u32, steps u16
    record          "SMLR" · length of the delta u32 · round u32 · CRC-32 of the preceding 12 bytes
                    · round delta (a frame) · end digest 32 · record hash 32
    record hash     SHA-256(link), where link = previous record hash · round u32
                    · SHA-256(round delta) · end digest
    snapshot        "SAMARASN" · the rest of the identity · link of the round 100 · d u32
                    · SHA-256 of the preceding 160 bytes · state, d × int64

Contributors precede their record in the same append, and are not sent to clients. The token in the
record's delta is the start of the contributors' SHA-256, so that the chain covers them. Segments of
version 2, whose deltas include the contributors, are still read.

The chain starts with the hash of the identity. A record hash is computed from hashes only. So a
snapshot can prove with the 100-byte link, and without the round's scalars, that its state belongs
to the chain.
"""

import hashlib
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import FrameError, LedgerError, ReplayError
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.replay import Backend, digest, rebuild
from samara.shared.protocol.round_delta import RoundDelta
from samara.shared.protocol.wire import MAX_FRAME_BYTES

LEDGER_VERSION = 2
"""Format version of snapshots, and of the identity that starts the chain."""
SEGMENT_VERSION = 3
"""Format version of new segments, which store contributors outside the round delta."""
SEGMENT_MAGIC = b"SAMARALG"
HASH_BYTES = 32
_IDENTITY = struct.Struct("<8sHHI8s32s")
IDENTITY_BYTES = _IDENTITY.size
_START = struct.Struct("<I32s")
SEGMENT_HEADER_BYTES = IDENTITY_BYTES + _START.size + HASH_BYTES
_RECORD = struct.Struct("<4sIII")
_RECORD_MAGIC = b"SMLR"
_CONTRIBUTORS_MAGIC = b"SMLC"
_TRAILER_BYTES = 2 * HASH_BYTES
_LINK = struct.Struct("<32sI32s32s")
_COUNT = struct.Struct("<I")
SNAPSHOT_MAGIC = b"SAMARASN"
_SNAPSHOT_FIELDS_BYTES = IDENTITY_BYTES + _LINK.size + _COUNT.size
_SNAPSHOT_HEADER_BYTES = _SNAPSHOT_FIELDS_BYTES + HASH_BYTES
CHECK_EVERY = 256
"""Largest number of rounds replayed between two digest checks. Each check hashes d numbers."""
_BATCH_BYTES = 4 * 2**20
"""Largest total size in bytes of the round deltas replayed between two digest checks.

They are in memory at the same time.
"""


class TornRecordError(LedgerError):
    """A record is incomplete, because its writer has not finished it yet or has crashed."""


@dataclass(frozen=True)
class Position:
    """A point between two records: the last round before it and that record's hash."""

    round: int
    head: bytes


@dataclass(frozen=True)
class LedgerHeader:
    """The identity of a ledger: its track, run and layout.

    Attributes:
        track: track whose round deltas it keeps.
        run_id: 8 bytes.
        layout_hash: 32 bytes.
    """

    track: int
    run_id: bytes
    layout_hash: bytes

    def encode(self, magic: bytes = SEGMENT_MAGIC, version: int = LEDGER_VERSION) -> bytes:
        """Return the first 56 bytes of every ledger file."""
        return _IDENTITY.pack(magic, version, 0, self.track, self.run_id, self.layout_hash)

    @classmethod
    def decode(cls, data: bytes, magic: bytes, newest: int = LEDGER_VERSION) -> Self:
        """Read an identity. The caller has checked its checksum.

        Raises:
            UnreadableError: if the file has another version.
            LedgerError: if the file is of another kind.
        """
        letters, version, _, track, run_id, layout_hash = _IDENTITY.unpack_from(data)
        if letters != magic:
            raise LedgerError(f"the file does not begin with {magic.decode()}")
        if not LEDGER_VERSION <= version <= newest:
            raise UnreadableError(
                f"the ledger has version {version}, but this Samara reads only version {newest}; "
                "use the Samara version that wrote it"
            )
        return cls(track, run_id, layout_hash)

    @property
    def start(self) -> Position:
        """The position before round 1."""
        return Position(0, hashlib.sha256(self.encode()).digest())


def encode_segment_header(header: LedgerHeader, start: Position) -> bytes:
    """Return the header of a segment that continues at `start`."""
    fields = header.encode(version=SEGMENT_VERSION) + _START.pack(start.round, start.head)
    return fields + hashlib.sha256(fields).digest()


def read_segment_header(stream: BinaryIO) -> tuple[LedgerHeader, Position, int]:
    """Read a segment's ledger header, the position before its first record, and its version.

    Raises:
        LedgerError: if the header is damaged.
    """
    data = stream.read(SEGMENT_HEADER_BYTES)
    fields, checksum = data[:-HASH_BYTES], data[-HASH_BYTES:]
    if len(data) < SEGMENT_HEADER_BYTES or hashlib.sha256(fields).digest() != checksum:
        raise LedgerError("the segment's header is damaged or missing")
    header = LedgerHeader.decode(fields, SEGMENT_MAGIC, SEGMENT_VERSION)
    _, version, *_ = _IDENTITY.unpack_from(fields)
    start = Position(*_START.unpack_from(fields, IDENTITY_BYTES))
    if start.round == 0 and start != header.start:
        raise LedgerError(
            "the segment starts at round 0, but its chain hash does not match its header"
        )
    return header, start, version


@dataclass(frozen=True)
class Link:
    """The hashed part of a record, without its scalars.

    Attributes:
        previous: hash of the previous record, 32 bytes.
        round: round of the record.
        delta_hash: SHA-256 of the round delta.
        end_digest: digest of the state after the round, 32 bytes.
    """

    previous: bytes
    round: int
    delta_hash: bytes
    end_digest: bytes

    def encode(self) -> bytes:
        """Return the 100 bytes whose SHA-256 is the record hash."""
        return _LINK.pack(self.previous, self.round, self.delta_hash, self.end_digest)

    @cached_property
    def position(self) -> Position:
        """The position after the record."""
        return Position(self.round, hashlib.sha256(self.encode()).digest())


@dataclass(frozen=True, eq=False)
class Record:
    """One round in the ledger.

    Attributes:
        delta: round delta of the round.
        frame: bytes of the round delta as sent to clients.
        link: link of the record in the hash chain.
        contributors: encoded contributors, stored separately; empty without any.
    """

    delta: RoundDelta
    frame: bytes
    link: Link
    contributors: bytes = b""

    @classmethod
    def create(cls, previous: Position, delta: RoundDelta, end_digest: bytes) -> Self:
        """Return the record that extends a ledger by one round.

        Raises:
            LedgerError: if the round does not follow the previous round.
        """
        if delta.round != previous.round + 1:
            raise LedgerError(f"round {delta.round} does not follow round {previous.round}")
        frame = delta.without_contributors().encode()
        link = Link(previous.head, delta.round, hashlib.sha256(frame).digest(), end_digest)
        return cls(delta, frame, link, delta.encode_contributors())

    def encode(self) -> bytes:
        """Encode the record for the file."""
        return self._kept + self.sent()

    def sent(self) -> bytes:
        """Encode the record for a client, without its contributors."""
        start = _encode_start(_RECORD_MAGIC, len(self.frame), self.link.round)
        return start + self.frame + self.end_digest + self.position.head

    @property
    def _kept(self) -> bytes:
        if not self.contributors:
            return b""
        start = _encode_start(_CONTRIBUTORS_MAGIC, len(self.contributors), self.link.round)
        return start + self.contributors

    @property
    def end_digest(self) -> bytes:
        """The digest of the state after the round, 32 bytes."""
        return self.link.end_digest

    @property
    def position(self) -> Position:
        """The position after this record."""
        return self.link.position

    @property
    def size(self) -> int:
        """The length of the record in the file, in bytes."""
        return len(self._kept) + _RECORD.size + len(self.frame) + _TRAILER_BYTES


def _encode_start(magic: bytes, length: int, number: int) -> bytes:
    fields = struct.pack("<4sII", magic, length, number)
    return fields + struct.pack("<I", zlib.crc32(fields))


class _RecordStart(NamedTuple):
    """The start of a record: its contributors, the length of its delta, and its round."""

    contributors: bytes
    length: int
    round: int


def _read_start(stream: BinaryIO, expected: int) -> _RecordStart | None:
    """Read the bytes before the next record's delta; None at the end."""
    magic, length, number = _read_fields(stream, expected)
    if not magic:
        return None
    contributors = b""
    if magic == _CONTRIBUTORS_MAGIC:
        contributors = stream.read(length)
        counted = number
        magic, length, number = _read_fields(stream, expected)
        if not magic:
            raise TornRecordError(f"round {expected}: the ledger ends inside the record")
        if magic != _RECORD_MAGIC or counted != number:
            raise LedgerError(f"round {expected}: contributors are not followed by their record")
    return _RecordStart(contributors, length, number)


def _read_fields(stream: BinaryIO, expected: int) -> tuple[bytes, int, int]:
    """Read magic, length and round of the next header; the magic is empty at the end."""
    fields = stream.read(_RECORD.size)
    if not fields:
        return b"", 0, 0
    if len(fields) < _RECORD.size:
        raise TornRecordError(f"round {expected}: the ledger ends inside the record")
    magic, length, number, checksum = _RECORD.unpack(fields)
    is_known = magic in (_RECORD_MAGIC, _CONTRIBUTORS_MAGIC)
    if not is_known or checksum != zlib.crc32(fields[:12]) or length > MAX_FRAME_BYTES:
        raise LedgerError(f"round {expected}: the record's header is damaged")
    return magic, length, number


def read_record(stream: BinaryIO, previous: Position, track: int) -> Record | None:
    """Return the record after a position, or None at the end.

    Args:
        stream: readable stream positioned after `previous`.
        previous: position, with the hash at which the chain continues.
        track: track that the ledger's round deltas must have.

    Raises:
        TornRecordError: if the stream ends inside the record.
        LedgerError: if the record is damaged or does not continue the chain.
    """
    expected = previous.round + 1
    start = _read_start(stream, expected)
    if start is None:
        return None
    contributors, length, number = start
    rest = stream.read(length + _TRAILER_BYTES)
    if len(rest) < length + _TRAILER_BYTES:
        raise TornRecordError(f"round {expected}: the ledger ends inside the record")
    frame, end_digest, record_hash = rest[:length], rest[length:-HASH_BYTES], rest[-HASH_BYTES:]
    link = Link(previous.head, number, hashlib.sha256(frame).digest(), end_digest)
    if link.position.head != record_hash:
        raise LedgerError(
            f"round {expected}: the record is damaged or does not follow the previous one"
        )
    try:
        delta = RoundDelta.decode(frame)
        if contributors:
            delta = delta.with_contributors(contributors)
    except FrameError as error:
        raise LedgerError(f"round {expected}: {error}") from error
    if not number == delta.round == expected:
        raise LedgerError(f"round {expected}: the record says it is round {number}")
    if delta.track != track:
        raise LedgerError(f"round {expected}: the record is of track {delta.track}, not {track}")
    return Record(delta, frame, link, contributors)


def read_records(stream: BinaryIO, start: Position, track: int) -> Iterator[Record]:
    """Yield all records after a position.

    Raises:
        TornRecordError: if the last record is not whole.
        LedgerError: at the first record that is damaged, or of another track.
    """
    while (record := read_record(stream, start, track)) is not None:
        yield record
        start = record.position


def skip_records(stream: BinaryIO, start: Position, rounds: int) -> Position:
    """Skip `rounds` records by reading only their headers and hashes; return the position reached.

    Raises:
        LedgerError: if there are fewer records, or a header is damaged.
    """
    for expected in range(start.round + 1, start.round + rounds + 1):
        fields = _read_start(stream, expected)
        if fields is None:
            raise LedgerError(f"the segment ends before round {expected}")
        stream.seek(fields.length + HASH_BYTES, os.SEEK_CUR)
        start = Position(expected, stream.read(HASH_BYTES))
    if len(start.head) < HASH_BYTES:
        raise TornRecordError(f"round {start.round}: the ledger ends inside the record")
    return start


def sent_span(stream: BinaryIO, number: int) -> tuple[int, int]:
    """Return the byte range of the next record as clients receive it, and move to its end.

    Raises:
        LedgerError: if there is no further record, or its header is damaged.
    """
    fields = _read_start(stream, number)
    if fields is None:
        raise LedgerError(f"the segment ends before round {number}")
    begin = stream.tell() - _RECORD.size
    end = stream.seek(fields.length + _TRAILER_BYTES, os.SEEK_CUR)
    return begin, end


def records_after(tail: bytes, round_number: int) -> bytes:
    """Remove from a catch-up all records up to and including a round.

    A client has more rounds than the server knows if the client's last answer was lost.
    """
    at = 0
    while at + _RECORD.size <= len(tail):
        magic, length, number, _ = _RECORD.unpack_from(tail, at)
        if magic != _RECORD_MAGIC or number > round_number:
            break
        at += _RECORD.size + length + _TRAILER_BYTES
    return tail[at:]


def is_unwritten_record(rest: bytes) -> bool:
    """Return whether the last record of a file is all zeros, or has zeros in place of its hash.

    Some file systems leave such a record after a power cut, because they have written the length of
    an append but not its bytes. The record was never acknowledged: `fsync` had not returned.
    """
    if rest.count(0) == len(rest):
        return True
    magic, length, _, checksum = _RECORD.unpack_from(rest)
    is_sound = checksum == zlib.crc32(rest[:12])
    if is_sound and magic == _CONTRIBUTORS_MAGIC:
        return is_unwritten_record(rest[_RECORD.size + length :])
    is_last = len(rest) == _RECORD.size + length + _TRAILER_BYTES
    return is_sound and magic == _RECORD_MAGIC and is_last and not any(rest[-HASH_BYTES:])


class UnreadableError(LedgerError):
    """A file cannot be read, so it is unknown whether it is damaged."""


def snapshot_bytes(size: int) -> int:
    """Return the length of a snapshot of d elements, in bytes."""
    return _SNAPSHOT_HEADER_BYTES + 8 * size


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state of a track after a round.

    Attributes:
        header: track, run and layout of the ledger.
        link: hash-chain link of the round's record; it contains the digest of the state.
        state: state after the round, int64 [d].
    """

    header: LedgerHeader
    link: Link
    state: NDArray[np.int64]

    @property
    def position(self) -> Position:
        """The position after the round."""
        return self.link.position

    def parts(self) -> tuple[bytes, memoryview]:
        """Return the snapshot's bytes as header and state, without a copy of the state."""
        fields = self.header.encode(SNAPSHOT_MAGIC) + self.link.encode()
        fields += _COUNT.pack(len(self.state))
        state = np.ascontiguousarray(self.state, "<i8")
        return fields + hashlib.sha256(fields).digest(), state.data.cast("B")

    @classmethod
    def decode(cls, data: bytes, header: LedgerHeader, layout: Layout) -> Self:
        """Decode a snapshot of this ledger.

        Args:
            data: bytes from a file or from the network.
            header: track, run and layout that the snapshot must have.
            layout: layout of the adapter.

        Returns:
            The snapshot; its state is a view of `data`.

        Raises:
            LedgerError: if the snapshot is damaged or of another ledger, or its state's digest is
                wrong.
        """
        if len(data) != snapshot_bytes(layout.size):
            raise LedgerError(
                f"a snapshot of {layout.size} elements has {snapshot_bytes(layout.size)} bytes, "
                f"not {len(data)}"
            )
        fields, checksum = (
            data[:_SNAPSHOT_FIELDS_BYTES],
            data[_SNAPSHOT_FIELDS_BYTES:_SNAPSHOT_HEADER_BYTES],
        )
        if hashlib.sha256(fields).digest() != checksum:
            raise LedgerError("the snapshot's header is damaged")
        if LedgerHeader.decode(fields, SNAPSHOT_MAGIC) != header:
            raise LedgerError("the snapshot is of another run, track or layout")
        link = Link(*_LINK.unpack_from(fields, IDENTITY_BYTES))
        (count,) = _COUNT.unpack_from(fields, IDENTITY_BYTES + _LINK.size)
        if link.round < 1 or count != layout.size:
            raise LedgerError(
                f"the snapshot is of round {link.round} and has {count} elements; it needs a round "
                f"from 1 on and {layout.size} elements"
            )
        state = np.frombuffer(data, "<i8", offset=_SNAPSHOT_HEADER_BYTES).astype(
            np.int64, copy=False
        )
        if digest(layout.hash, state) != link.end_digest:
            raise LedgerError(
                f"the digest of the snapshot's state is not the digest after round {link.round}"
            )
        return cls(header, link, state)


def read_snapshot(path: Path, header: LedgerHeader, layout: Layout) -> Snapshot:
    """Read a snapshot file, whose name is its round.

    Raises:
        UnreadableError: naming the file, if it cannot be read.
        LedgerError: naming the file, if it is not a valid snapshot of this ledger.
    """
    try:
        with path.open("rb") as file:
            snapshot = Snapshot.decode(file.read(snapshot_bytes(layout.size) + 1), header, layout)
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be read: {error.strerror}") from error
    except LedgerError as error:
        raise LedgerError(f"{path}: {error}") from error
    if int(path.stem) != snapshot.link.round:
        raise LedgerError(
            f"{path}: the snapshot is of round {snapshot.link.round}, but its name differs"
        )
    return snapshot


@dataclass(frozen=True)
class CatchUp:
    """The data with which a client reaches the server's state.

    Attributes:
        snapshot: bytes of a snapshot after the client's round; empty if the records suffice.
        tail: records after the snapshot's round or, without a snapshot, after the client's round.
    """

    snapshot: bytes = b""
    tail: bytes = b""

    def __len__(self) -> int:
        """Return the number of bytes to send."""
        return len(self.snapshot) + len(self.tail)


class _DigestMismatchError(LedgerError):
    """The digest after replaying a round differs from the digest in the round's record."""


def replay_batch(
    state: NDArray[np.int64],
    records: Sequence[Record],
    layout: Layout,
    backend: Backend | None = None,
) -> NDArray[np.int64]:
    """Replay records together, and check only the digest of the last one.

    Args:
        state: state before the first record, int64 [d].
        records: consecutive records; at least one.
        layout: layout of the adapter.
        backend: replay backend; the default one if None.

    Returns:
        int64 [d], the state after the last record.

    Raises:
        LedgerError: naming the last round, if the digest differs, or dense values are outside the
            state or not allowed in the track.
    """
    entries = [entry for record in records for entry in record.delta.scalar_groups()]
    try:
        for record in records:
            record.delta.check_dense_values(layout)
        state = rebuild(state, entries, layout.distribution, backend)
    except ReplayError as error:
        raise LedgerError(f"round {records[-1].delta.round} or before: {error}") from error
    if digest(layout.hash, state) != records[-1].end_digest:
        raise _DigestMismatchError(
            f"round {records[-1].delta.round}: replaying it gives a digest other than the recorded "
            "one"
        )
    return state


def replay_records(
    start: Callable[[], NDArray[np.int64]],
    records: Callable[[], Iterable[Record]],
    layout: Layout,
    backend: Backend | None = None,
) -> tuple[NDArray[np.int64], Record | None]:
    """Replay records, and check the digest of every `CHECK_EVERY`-th record and of the last one.

    After a wrong digest all records are replayed again with a check after every record, so that the
    error names the first wrong round. `start` and `records` are functions, because the repetition
    calls them again.

    Args:
        start: function that returns the state before the first record, int64 [d].
        records: function that returns the records in order.
        layout: layout of the adapter.
        backend: replay backend; the default one if None.

    Returns:
        The state after the last record, int64 [d], and that record, or None if there were none.

    Raises:
        LedgerError: naming the first round whose digest is not the one in its record.
        UnreadableError: if the repetition gives the recorded digests.
    """
    try:
        return _replay_batches(start(), _batches(records(), CHECK_EVERY), layout, backend)
    except _DigestMismatchError:
        _replay_batches(start(), _batches(records(), 1), layout, backend)
        raise UnreadableError(
            "replay gave a wrong digest, but the right one when repeated: the memory or processor "
            "of this machine is faulty; use another machine"
        ) from None


def _replay_batches(
    state: NDArray[np.int64],
    batches: Iterable[Sequence[Record]],
    layout: Layout,
    backend: Backend | None,
) -> tuple[NDArray[np.int64], Record | None]:
    last = None
    for batch in batches:
        state = replay_batch(state, batch, layout, backend)
        last = batch[-1]
    return state, last


def _batches(records: Iterable[Record], most: int) -> Iterator[Sequence[Record]]:
    """Yield records in batches of at most `most`, and of limited size in bytes."""
    batch: list[Record] = []
    size = 0
    for record in records:
        batch.append(record)
        size += record.size
        if len(batch) == most or size >= _BATCH_BYTES:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch
