"""The ledger: an append-only, hash-chained, fsynced log of the round deltas of one track.

A file is a header and records, all little-endian (docs/ledger.md):

    header  "SAMARALG" · version u16 · 2 zero bytes · track u32 · run id 8 · layout hash 32
            · SHA-256 of the preceding 56 bytes
    record  "SMLR" · length of the delta u32 · round u32 · CRC-32 of the preceding 12 bytes
            · round delta (a frame) · end digest 32
            · record hash 32 = SHA-256(previous record's hash · everything of this record before)

The header's hash starts the chain. base + ledger = the fine-tuned model.
"""

import fcntl
import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from shared.directions import Distribution
from shared.errors import FrameError, LedgerError, ReplayError
from shared.replay import digest, replay
from shared.round_delta import RoundDelta
from shared.wire import MAX_FRAME_BYTES

LEDGER_VERSION = 1
_HEADER = struct.Struct("<8sHHI8s32s")
_HEADER_BYTES = _HEADER.size + 32
_RECORD = struct.Struct("<4sIII")
_TRAILER_BYTES = 64
_HASH_BYTES = 32


@dataclass(frozen=True)
class LedgerHeader:
    """What a ledger belongs to."""

    track: int
    run_id: bytes
    layout_hash: bytes

    def encode(self) -> bytes:
        """The header's bytes; the last 32 start the hash chain."""
        fields = _HEADER.pack(
            b"SAMARALG", LEDGER_VERSION, 0, self.track, self.run_id, self.layout_hash
        )
        return fields + hashlib.sha256(fields).digest()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a header.

        Raises:
            LedgerError: if it is not a sound one.
        """
        if len(data) < _HEADER_BYTES or data[:8] != b"SAMARALG":
            raise LedgerError("the file does not begin with a ledger header")
        fields, checksum = data[: _HEADER.size], data[_HEADER.size : _HEADER_BYTES]
        if hashlib.sha256(fields).digest() != checksum:
            raise LedgerError("the ledger's header is damaged")
        _, version, _, track, run_id, layout_hash = _HEADER.unpack(fields)
        if version != LEDGER_VERSION:
            raise LedgerError(f"ledger version {version} is not {LEDGER_VERSION}; update Samara")
        return cls(track, run_id, layout_hash)

    @property
    def start(self) -> "Position":
        """Where every replay of this ledger begins."""
        return Position(0, self.encode()[-_HASH_BYTES:])


@dataclass(frozen=True)
class Position:
    """A point between two records: the last round before it and that record's hash."""

    round: int
    head: bytes


@dataclass(frozen=True, eq=False)
class Record:
    """One round in the ledger.

    Attributes:
        delta: the round's scalars.
        end_digest: of the state after it, 32 bytes.
        position: behind this record.
        size: bytes of the record in the file.
    """

    delta: RoundDelta
    end_digest: bytes
    position: Position
    size: int


def encode_record(delta: RoundDelta, end_digest: bytes, previous: Position) -> bytes:
    """The bytes that extend a ledger by one round.

    Raises:
        LedgerError: if the round does not follow the previous one.
    """
    if delta.round != previous.round + 1:
        raise LedgerError(f"round {delta.round} does not follow round {previous.round}")
    frame = delta.encode()
    fields = struct.pack("<4sII", b"SMLR", len(frame), delta.round)
    body = fields + struct.pack("<I", zlib.crc32(fields)) + frame + end_digest
    return body + hashlib.sha256(previous.head + body).digest()


class _TornRecordError(LedgerError):
    """The file ends inside a record: a crash while it was being appended."""


def read_record(stream: BinaryIO, previous: Position) -> Record | None:
    """The record after a position, or None at the end.

    Args:
        stream: anything readable that stands right behind `previous`.
        previous: the position, with the hash that the chain continues from.

    Raises:
        LedgerError: if the record is damaged, torn, or does not continue the chain.
    """
    expected = previous.round + 1
    fields = stream.read(_RECORD.size)
    if not fields:
        return None
    if len(fields) < _RECORD.size:
        raise _TornRecordError(f"round {expected}: the ledger ends inside the record")
    magic, length, round_number, checksum = _RECORD.unpack(fields)
    if magic != b"SMLR" or checksum != zlib.crc32(fields[:12]) or length > MAX_FRAME_BYTES:
        raise LedgerError(f"round {expected}: the record's header is damaged")
    rest = stream.read(length + _TRAILER_BYTES)
    if len(rest) < length + _TRAILER_BYTES:
        raise _TornRecordError(f"round {expected}: the ledger ends inside the record")
    body, record_hash = fields + rest[:-_HASH_BYTES], rest[-_HASH_BYTES:]
    if hashlib.sha256(previous.head + body).digest() != record_hash:
        raise LedgerError(f"round {expected}: the record is damaged or does not follow the last")
    try:
        delta = RoundDelta.decode(rest[:length])
    except FrameError as error:
        raise LedgerError(f"round {expected}: {error}") from error
    if not round_number == delta.round == expected:
        raise LedgerError(f"round {expected}: the record says it is round {round_number}")
    end_digest = rest[length:-_HASH_BYTES]
    return Record(delta, end_digest, Position(expected, record_hash), len(fields) + len(rest))


def records(stream: BinaryIO, start: Position) -> Iterator[Record]:
    """All records behind a position.

    Raises:
        LedgerError: at the first record that is damaged or torn.
    """
    while (record := read_record(stream, start)) is not None:
        yield record
        start = record.position


def follow(
    state: NDArray[np.int64],
    record: Record,
    layout_hash: bytes,
    distribution: Distribution,
) -> NDArray[np.int64]:
    """Replay one record and prove that it led where it says.

    Args:
        state: int64 [d], before the record.
        record: the next record.
        layout_hash: 32 bytes, part of every digest.
        distribution: of the directions.

    Returns:
        int64 [d], after it.

    Raises:
        LedgerError: if the digest is another, naming the round.
    """
    try:
        after = replay(state, record.delta.scalar_groups(), distribution)
    except ReplayError as error:
        raise LedgerError(f"round {record.delta.round}: {error}") from error
    if digest(layout_hash, after) != record.end_digest:
        raise LedgerError(
            f"round {record.delta.round}: replaying it gives another digest than recorded"
        )
    return after


class Ledger:
    """A ledger file opened by its only writer.

    Attributes:
        path: of the file.
        header: what it belongs to.
        position: behind the last whole record.
        recovered: what was dropped on opening, for the operator; empty if nothing was.
    """

    def __init__(self, path: Path, header: LedgerHeader) -> None:
        """Open the ledger at `path`, or begin it.

        A torn last record, left by a crash while it was written and so never acknowledged, is
        cut off and `recovered` says so. Any other damage is an error.

        Raises:
            LedgerError: if the file is damaged or belongs to another run, track or layout.
        """
        self.path, self.header, self.recovered = path, header, ""
        self.position = header.start
        self._offsets = [_HEADER_BYTES]
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise LedgerError(f"{path}: cannot be opened: {error.strerror}") from error
        try:
            self._open()
        except (LedgerError, OSError) as error:
            os.close(self._file)
            remedy = "restore the file or begin a new run"
            raise LedgerError(f"{path}: {error}; {remedy}") from error

    def _open(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LedgerError("another process is writing it") from None
        header = self.header.encode()
        begun = os.pread(self._file, _HEADER_BYTES, 0)
        if len(begun) < _HEADER_BYTES and header.startswith(begun):
            self._write(0, header)
        with self.path.open("rb") as file:
            if LedgerHeader.decode(file.read(_HEADER_BYTES)) != self.header:
                raise LedgerError("it belongs to another run, track or layout")
            try:
                for record in records(file, self.position):
                    self.position = record.position
                    self._offsets.append(self._offsets[-1] + record.size)
            except LedgerError as error:
                file.seek(self._offsets[-1])
                if not (isinstance(error, _TornRecordError) or _never_written(file.read())):
                    raise
                self._cut_torn_record()

    def _cut_torn_record(self) -> None:
        torn = os.fstat(self._file).st_size - self._offsets[-1]
        os.ftruncate(self._file, self._offsets[-1])
        os.fsync(self._file)
        self.recovered = (
            f"{self.path}: dropped {torn} bytes of round {self.position.round + 1}, which was "
            f"never completely written; the last whole round is {self.position.round}"
        )

    def _write(self, offset: int, data: bytes) -> None:
        """Write at an offset that ends the file, and wait for the disk."""
        written = 0
        while written < len(data):
            written += os.pwrite(self._file, data[written:], offset + written)
        os.fsync(self._file)

    def append(self, delta: RoundDelta, end_digest: bytes) -> int:
        """Add a round; it is on the disk when this returns.

        Returns:
            The bytes added.

        Raises:
            LedgerError: if the round does not follow, or the disk refuses; the file is then as
                it was before.
        """
        if delta.track != self.header.track:
            raise LedgerError(f"{self.path}: a delta of track {delta.track} does not belong here")
        data, end = encode_record(delta, end_digest, self.position), self._offsets[-1]
        try:
            self._write(end, data)
        except OSError as error:
            os.ftruncate(self._file, end)
            reason = f"cannot append round {delta.round}: {error.strerror}"
            raise LedgerError(f"{self.path}: {reason}") from error
        self._offsets.append(end + len(data))
        self.position = Position(delta.round, data[-_HASH_BYTES:])
        return len(data)

    def tail(self, since: int) -> bytes:
        """The records after round `since`, as they stand in the file.

        Raises:
            LedgerError: if the ledger does not reach that round.
        """
        if not 0 <= since <= self.position.round:
            raise LedgerError(f"{self.path}: there is no round {since} to continue from")
        with self.path.open("rb") as file:
            file.seek(self._offsets[since])
            return file.read(self._offsets[-1] - self._offsets[since])

    def records(self) -> Iterator[Record]:
        """All records from the first."""
        with self.path.open("rb") as file:
            file.seek(_HEADER_BYTES)
            yield from records(file, self.header.start)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _never_written(rest: bytes) -> bool:
    """Whether what should be the last record ends in zeros instead of a hash.

    Some file systems leave that after a power cut: the length of an append is on the disk, its
    bytes are not. It was never acknowledged, since `fsync` had not returned.
    """
    if rest.count(0) == len(rest):
        return True
    magic, length, _, checksum = _RECORD.unpack_from(rest)
    is_last = len(rest) == _RECORD.size + length + _TRAILER_BYTES
    sound = magic == b"SMLR" and checksum == zlib.crc32(rest[:12])
    return sound and is_last and not any(rest[-_HASH_BYTES:])


def read_header(path: Path) -> LedgerHeader:
    """The header of a ledger file.

    Raises:
        LedgerError: if the file cannot be read or is no ledger.
    """
    try:
        with path.open("rb") as file:
            return LedgerHeader.decode(file.read(_HEADER_BYTES))
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror}") from error
    except LedgerError as error:
        raise LedgerError(f"{path}: {error}") from error


def read_records(path: Path) -> Iterator[Record]:
    """The records of a ledger file, strictly: a torn last record is an error too.

    Raises:
        LedgerError: naming the file and the round.
    """
    header = read_header(path)
    with path.open("rb") as file:
        file.seek(_HEADER_BYTES)
        try:
            yield from records(file, header.start)
        except LedgerError as error:
            raise LedgerError(f"{path}: {error}") from error
