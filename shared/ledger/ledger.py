"""The ledger: an append-only, hash-chained, fsynced log of the round deltas of one track.

A ledger is a folder of segments and snapshots (docs/reference/ledger.md). One process writes it;
any number may read it at the same time (shared/ledger/reading.py).
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from samara.shared.errors import LedgerError, ReplayError
from samara.shared.files import make_folder, sync_folder, write_durably
from samara.shared.layout import Layout
from samara.shared.ledger.reading import (
    LOCK_FILE,
    Segment,
    read_ledger,
    segment_path,
    segment_paths,
    snapshot_path,
    snapshot_paths,
)
from samara.shared.ledger.records import (
    SEGMENT_HEADER_BYTES,
    CatchUp,
    LedgerHeader,
    Link,
    Record,
    Snapshot,
    UnreadableError,
    encode_segment_header,
    read_snapshot,
    replay_records,
    skip_records,
    snapshot_bytes,
)
from samara.shared.ledger.recovery import recover
from samara.shared.replay import check_fits, digest, replay, zero_state
from samara.shared.round_delta import RoundDelta

SEGMENT_BYTES = 16 * 2**20
"""The size from which a segment gets no more records."""
_CHUNK_BYTES = 2**20
LONG_CATCH_UP = 2**16
"""Bytes up to which a client gets the records that it has missed, even if the state is shorter."""


class _Span(NamedTuple):
    """A part of a segment file."""

    path: Path
    begin: int
    end: int


class Ledger:
    """A ledger opened by its only writer, with the state after its last round.

    Attributes:
        folder: folder of the ledger.
        header: track, run and layout of the ledger.
        position: position after the last whole record.
        state: state after the last round, int64 [d].
        digest: digest of the state, 32 bytes.
        recovered: damage that was repaired on opening, for the operator; usually empty.
    """

    def __init__(
        self, folder: Path, header: LedgerHeader, layout: Layout, snapshot_every: int
    ) -> None:
        """Open the ledger in a folder, or create it.

        The state is that of the newest snapshot, with the rounds after it replayed. A torn last
        record, which a crash left before it was acknowledged, is cut off. A damaged snapshot is
        replaced by replaying from an older one. `recovered` reports both; any other damage is an
        error.

        Args:
            folder: folder of the ledger.
            header: track, run and layout that the ledger must have.
            layout: layout of the adapter.
            snapshot_every: rounds between snapshots; 0 for none.

        Raises:
            LedgerError: if the ledger is damaged, is in use by another process, or belongs to
                another run, track or layout.
        """
        self.folder, self.header, self._layout = folder, header, layout
        self._snapshot_every = snapshot_every
        try:
            make_folder(folder)
            self._lock = FileLock(folder / LOCK_FILE, thread_local=False)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise LedgerError(
                f"{folder}: another process is writing to it; end that process first"
            ) from None
        except OSError as error:
            raise LedgerError(f"{folder}: cannot be opened: {error.strerror}") from error
        try:
            self._open()
        except (LedgerError, OSError) as error:
            self._lock.release()
            remedy = "restore the folder or begin a new run"
            raise LedgerError(f"{folder}: {error}; {remedy}") from error
        except BaseException:
            self._lock.release()
            raise

    def _open(self) -> None:
        if not segment_paths(self.folder) and not snapshot_paths(self.folder):
            begin = encode_segment_header(self.header, self.header.start)
            write_durably(segment_path(self.folder, 1), begin)
        recovery = recover(self.folder, self.header, self._layout)
        self._segments = list(recovery.segments)
        self._end = self._segments[-1].path.stat().st_size if self._segments else 0
        self.position, self.recovered = recovery.position, "\n".join(recovery.notes)
        since = recovery.start.round
        self.state, last = replay_records(
            lambda: self._state_at(since),
            lambda: read_ledger(self.folder, since) if recovery.position != recovery.start else (),
            self._layout,
        )
        self.digest = digest(self._layout.hash, self.state)
        begun = self._snapshot(since).link if since and not last else None
        self._last = last.link if last else begun
        self._ends_with_intercept = bool(last and last.delta.common_intercept)
        for path in recovery.unusable_snapshots:
            path.unlink()
        self._snapshots = list(snapshot_paths(self.folder))
        if last:
            self._keep_snapshot(last.link)

    def _state_at(self, number: int) -> NDArray[np.int64]:
        return self._snapshot(number).state if number else zero_state(self._layout.size)

    def _snapshot(self, number: int) -> Snapshot:
        return read_snapshot(snapshot_path(self.folder, number), self.header, self._layout)

    def check(self, delta: RoundDelta) -> None:
        """Raise an error if a round does not fit the exact range of the state.

        Raises:
            ReplayError: if it does not fit; the ledger is unchanged.
        """
        check_fits(self.state, delta.changes)

    def append(self, delta: RoundDelta) -> int:
        """Apply a round, and return once its record is on the disk.

        Returns:
            The bytes of its record.

        Raises:
            ReplayError: if it does not fit the state; the ledger is unchanged.
            LedgerError: if the round is not the next one, or writing fails; the ledger is then
                unchanged, unless only the snapshot after the round could not be written.
        """
        if delta.track != self.header.track:
            raise LedgerError(
                f"{self.folder}: a delta of track {delta.track}, not {self.header.track}"
            )
        try:
            delta.check_dense_values(self._layout)
        except ReplayError as error:
            raise LedgerError(f"{self.folder}: {error}") from error
        state = replay(self.state, delta.scalar_groups(), self._layout.distribution)
        record = Record.create(self.position, delta, digest(self._layout.hash, state))
        try:
            if self._segment_is_full():
                self._begin_segment(record.encode())
            else:
                self._extend_segment(record.encode())
        except OSError as error:
            reason = f"cannot append round {delta.round}: {error.strerror}"
            raise LedgerError(
                f"{self.folder}: {reason}; make room there, and the same command goes on"
            ) from error
        self.state, self.digest, self.position = state, record.end_digest, record.position
        self._last = record.link
        self._ends_with_intercept = delta.common_intercept is not None
        self._keep_snapshot(record.link)
        return record.size

    def _segment_is_full(self) -> bool:
        """Return whether the next record begins a segment: after a snapshot or a large segment."""
        return self._end >= SEGMENT_BYTES or self._snapshots[-1:] == [self.position.round]

    def _begin_segment(self, record: bytes) -> None:
        """Write a segment together with its first record, so that no crash leaves an empty one."""
        path = segment_path(self.folder, self.position.round + 1)
        begin = encode_segment_header(self.header, self.position)
        try:
            write_durably(path, begin, record)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._segments.append(Segment(path, self.header, self.position))
        self._end = len(begin) + len(record)

    def _extend_segment(self, record: bytes) -> None:
        with self._segments[-1].path.open("r+b", buffering=0) as file:
            file.truncate(self._end)  # bytes that a failed append left behind
            file.seek(self._end)
            try:
                rest = memoryview(record)
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(self._end)
                raise
        self._end += len(record)

    def _keep_snapshot(self, link: Link) -> None:
        """Write the snapshot of the state if it is due after this round and not yet written.

        There is none with a common intercept, which clients must be able to tell from the rest.
        """
        every, number = self._snapshot_every, link.round
        if not every or number % every or number in self._snapshots or self._ends_with_intercept:
            return
        path = snapshot_path(self.folder, number)
        try:
            write_durably(path, *Snapshot(self.header, link, self.state).parts())
        except OSError as error:
            raise LedgerError(
                f"{path}: cannot be written: {error.strerror}; round {number} itself is safe"
            ) from error
        self._snapshots.append(number)

    def compact(self, passed: int) -> None:
        """Delete the snapshots and segments that no client needs any more.

        The two newest snapshots stay, and all records after the older one, so that a snapshot
        that turns out to be damaged can be made up for. Older snapshots go. A segment before them
        goes when every client has passed it, or when its records and those up to the newest
        snapshot are longer than that snapshot, which is then what a client gets instead. Oldest
        go first, so that a crash leaves no gap.

        Args:
            passed: round that every known client has reached.

        Raises:
            LedgerError: if deleting fails, or the older of the two snapshots is damaged; then
                nothing else is deleted before the next snapshot.
        """
        if len(self._snapshots) < 2:
            return
        *outdated, older, newest = self._snapshots
        obsolete = []
        for segment, following in pairwise(self._segments):
            last = following.start.round
            if last > older or (passed < last and self._is_short(last, newest)):
                break
            obsolete.append(segment)
        if not outdated and not obsolete:
            return
        try:
            self._snapshot(older)
        except UnreadableError:
            raise
        except LedgerError:
            self._delete([snapshot_path(self.folder, older)])
            self._snapshots.remove(older)
            raise
        self._delete([snapshot_path(self.folder, number) for number in outdated])
        self._snapshots = [older, newest]
        self._segments = self._segments[len(obsolete) :]
        kept = {segment.path for segment in self._segments}
        self._delete([p for p in segment_paths(self.folder).values() if p not in kept])

    def _delete(self, paths: Sequence[Path]) -> None:
        try:
            for path in paths:
                path.unlink(missing_ok=True)
            sync_folder(self.folder)
        except OSError as error:
            raise LedgerError(f"{self.folder}: cannot delete: {error.strerror}") from error

    def catch_up(self, since: int) -> CatchUp:
        """Return the shorter catch-up, by records or snapshot, for a client at round `since`.

        Where both are longer than the state, and longer than `LONG_CATCH_UP`, it is the state,
        unless the last round is a common intercept: its record is sent in any case.

        Raises:
            LedgerError: if the ledger has no such round, or a file is damaged.
        """
        newest = self._snapshots[-1] if self._snapshots else 0
        by_records = since >= newest or (
            self._reaches_back_to(since) and self._is_short(since, newest)
        )
        begin, whole = since if by_records else newest, snapshot_bytes(self._layout.size)
        length = self._size_after(begin) + (0 if by_records else whole)
        is_long = length > max(whole, LONG_CATCH_UP)
        if self._last and is_long and not self._ends_with_intercept:
            return CatchUp(b"".join(Snapshot(self.header, self._last, self.state).parts()))
        tail = b"".join(self.tail(begin))
        if by_records:
            return CatchUp(tail=tail)
        return CatchUp(b"".join(self._snapshot(newest).parts()), tail)

    def tail(self, since: int) -> Iterator[bytes]:
        """Yield the bytes of the records after round `since`, in pieces of at most 1 MiB.

        Raises:
            LedgerError: if the ledger has no such round, or no longer keeps the records after it.
        """
        try:
            for span in self._spans(since):
                with span.path.open("rb") as file:
                    file.seek(span.begin)
                    for place in range(span.begin, span.end, _CHUNK_BYTES):
                        yield file.read(min(_CHUNK_BYTES, span.end - place))
        except OSError as error:
            raise LedgerError(f"{self.folder}: cannot be read: {error.strerror}") from error

    def _reaches_back_to(self, since: int) -> bool:
        return bool(self._segments) and self._segments[0].start.round <= since

    def _is_short(self, since: int, newest: int) -> bool:
        """Return whether the records from a round to the newest snapshot are no longer than it."""
        size = self._size_after(since) - self._size_after(newest)
        return size <= snapshot_bytes(self._layout.size)

    def _size_after(self, since: int) -> int:
        """Return the bytes of the records after a round."""
        return sum(span.end - span.begin for span in self._spans(since))

    def _spans(self, since: int) -> list[_Span]:
        """Return the parts of the segment files that hold the records after a round."""
        if not 0 <= since <= self.position.round:
            raise LedgerError(f"{self.folder}: has no round {since} to continue from")
        if since == self.position.round:
            return []
        if not self._reaches_back_to(since):
            raise LedgerError(f"{self.folder}: the rounds after {since} are only in the snapshot")
        first = sum(segment.start.round <= since for segment in self._segments) - 1
        begun, *later = self._segments[first:]
        try:
            with begun.path.open("rb") as file:
                file.seek(SEGMENT_HEADER_BYTES)
                skip_records(file, begun.start, since - begun.start.round)
                spans = [_Span(begun.path, file.tell(), begun.path.stat().st_size)]
            spans += [_Span(s.path, SEGMENT_HEADER_BYTES, s.path.stat().st_size) for s in later]
        except OSError as error:
            raise LedgerError(f"{self.folder}: cannot be read: {error.strerror}") from error
        return [*spans[:-1], spans[-1]._replace(end=self._end)]

    def close(self) -> None:
        """Release the lock, so that another process may write."""
        self._lock.release()
