"""The ledger: an append-only, hash-chained, fsynced log of the round deltas of one track.

A ledger is a folder of segments and snapshots (docs/reference/ledger.md). Only one process writes a
ledger, and any number of processes may read it meanwhile (shared/protocol/ledger/reading.py).
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
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.ledger.reading import (
    LOCK_FILE,
    Segment,
    damage_explained,
    read_ledger,
    segment_path,
    segment_paths,
    snapshot_path,
    snapshot_paths,
)
from samara.shared.protocol.ledger.records import (
    SEGMENT_HEADER_BYTES,
    SEGMENT_VERSION,
    CatchUp,
    LedgerHeader,
    Link,
    Record,
    Snapshot,
    UnreadableError,
    encode_segment_header,
    read_snapshot,
    replay_records,
    sent_span,
    skip_records,
    snapshot_bytes,
)
from samara.shared.protocol.ledger.recovery import recover
from samara.shared.protocol.replay import DenseValues, check_fits, digest, replay, zero_state
from samara.shared.protocol.round_delta import RoundDelta
from samara.shared.storage.files import make_folder, sync_folder, write_durably

SEGMENT_BYTES = 16 * 2**20
"""Size in bytes at which a segment is full. The next record then starts a new segment."""


class _Span(NamedTuple):
    """The byte range of a record in a segment file, without the contributors before it."""

    path: Path
    begin: int
    end: int

    def read(self) -> bytes:
        """Return the bytes of the record."""
        with self.path.open("rb") as file:
            file.seek(self.begin)
            return file.read(self.end - self.begin)


class Ledger:
    """A ledger opened by its only writer, with the state after its last round.

    Attributes:
        folder: folder of the ledger.
        header: track, run and layout of the ledger.
        position: position after the last whole record.
        state: state after the last round, int64 [d].
        digest: digest of the state, 32 bytes.
        recovered: notes for the operator on damage repaired at opening; usually empty.
    """

    def __init__(
        self, folder: Path, header: LedgerHeader, layout: Layout, snapshot_every: int
    ) -> None:
        """Open the ledger in a folder, or create it.

        The state comes from the newest snapshot and a replay of the rounds after it. An incomplete
        last record, left by a crash before it was acknowledged, is cut off. If a snapshot is
        damaged, replay starts from an older one. `recovered` reports both kinds of damage. Any
        other damage is an error.

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
            with damage_explained(folder):
                self._open()
        except OSError as error:
            self._lock.release()
            place = error.filename or folder
            raise LedgerError(f"{place}: cannot be opened: {error.strerror}") from error
        except BaseException:
            self._lock.release()
            raise

    def _open(self) -> None:
        if not segment_paths(self.folder) and not snapshot_paths(self.folder):
            begin = encode_segment_header(self.header, self.header.start)
            write_durably(segment_path(self.folder, 1), begin)
        recovery = recover(self.folder, self.header, self._layout)
        self._segments = list(recovery.segments)
        self._sent_sizes: dict[Path, int] = {}  # bytes as sent, by full segment
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
        self._state_sent: CatchUp | None = None
        if last:
            self._keep_snapshot(last.link)

    def _state_at(self, number: int) -> NDArray[np.int64]:
        return self._snapshot(number).state if number else zero_state(self._layout.size)

    def _snapshot(self, number: int) -> Snapshot:
        return read_snapshot(snapshot_path(self.folder, number), self.header, self._layout)

    def check(self, delta: RoundDelta) -> None:
        """Check that a round fits the exact range of the state.

        Raises:
            ReplayError: if the round does not fit; the ledger is unchanged.
        """
        check_fits(self.state, delta.changes)

    def append(self, delta: RoundDelta) -> int:
        """Apply a round, and return once its record is on the disk.

        Returns:
            The size of the round's record in bytes.

        Raises:
            ReplayError: if the round does not fit the state; the ledger is unchanged.
            LedgerError: if the round is not the next one, or writing fails; the ledger is then
                unchanged, unless only the snapshot after the round could not be written.
        """
        if delta.track != self.header.track:
            raise LedgerError(
                f"{self.folder}: the round is of track {delta.track}, not {self.header.track}"
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
                f"{self.folder}: {reason}; free disk space there, then run the same command"
            ) from error
        self.state, self.digest, self.position = state, record.end_digest, record.position
        self._last, self._state_sent = record.link, None
        self._ends_with_intercept = delta.common_intercept is not None
        self._keep_snapshot(record.link)
        return record.size

    def _segment_is_full(self) -> bool:
        """Return whether the next record starts a new segment.

        A new segment starts after a snapshot, or if the last segment is full or has an earlier
        format version.
        """
        is_earlier = bool(self._segments) and self._segments[-1].version < SEGMENT_VERSION
        is_large = self._end >= SEGMENT_BYTES
        return is_earlier or is_large or self._snapshots[-1:] == [self.position.round]

    def _begin_segment(self, record: bytes) -> None:
        """Write a new segment together with its first record, so that no crash leaves it empty."""
        path = segment_path(self.folder, self.position.round + 1)
        begin = encode_segment_header(self.header, self.position)
        try:
            write_durably(path, begin, record)
        except OSError:
            if self.position.round:
                path.unlink(missing_ok=True)
            raise
        if not self.position.round:  # it replaces an empty segment that an earlier version wrote
            self._segments.clear()
        self._segments.append(Segment(path, self.header, self.position, SEGMENT_VERSION))
        self._end = len(begin) + len(record)

    def _extend_segment(self, record: bytes) -> None:
        with self._segments[-1].path.open("r+b", buffering=0) as file:
            file.truncate(self._end)  # cut off the remains of a failed append
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
        """Write a snapshot of the state if one is due after this round and not yet written.

        No snapshot is written after a common intercept, because clients must be able to separate
        the intercept from the other rounds.
        """
        every = self._snapshot_every
        number = link.round
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

        The two newest snapshots and all records after the older one stay, so that a damaged newest
        snapshot can be rebuilt. Older snapshots are deleted. A segment that ends before both
        snapshots is deleted in either of two cases:

        - Every client has passed the segment.
        - The records from the segment's end to the newest snapshot are longer than this snapshot,
          so that clients receive the snapshot instead.

        The oldest files are deleted first, so that a crash leaves no gap.

        Args:
            passed: round that every known client has reached.

        Raises:
            LedgerError: if deleting fails, or the older of the two snapshots is damaged. That
                snapshot is then deleted; nothing else is deleted before the next snapshot.
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
        """Return the shorter catch-up for a client at round `since`: the records or the state.

        If the last round is a common intercept, a client that needs the state receives the state
        before the intercept and then the intercept's record.

        Raises:
            LedgerError: if the ledger lacks round `since`, or a file is damaged.
        """
        if not 0 <= since <= self.position.round:
            raise LedgerError(f"{self.folder}: the ledger has no round {since} to continue from")
        try:
            records = self._short_records(since)
        except OSError as error:
            raise LedgerError(f"{self.folder}: cannot be read: {error.strerror}") from error
        if records is not None:
            return CatchUp(tail=b"".join(records))
        if self._state_sent is None:
            self._state_sent = self._send_state()
        return self._state_sent

    def _short_records(self, since: int) -> list[bytes] | None:
        """Return the records after a round; None if some were deleted, or a snapshot is shorter."""
        if since < self.position.round and not self._reaches_back_to(since):
            return None
        spans = []
        left = snapshot_bytes(self._layout.size)
        for segment, last in self._segment_ends():
            for span in self._spans(segment, since, last):
                spans.append(span)
                left -= span.end - span.begin
                if left < 0:
                    return None
        return [span.read() for span in spans]

    def _send_state(self) -> CatchUp:
        """Return the present state as a catch-up."""
        assert self._last is not None, "before the first record there is nothing to catch up"
        if not self._ends_with_intercept:
            return CatchUp(b"".join(Snapshot(self.header, self._last, self.state).parts()))
        number = self._last.round - 1
        if number in self._snapshots:
            link = self._snapshot(number).link
        else:
            link = next(read_ledger(self.folder, number - 1)).link
        record = next(read_ledger(self.folder, number))
        added = record.delta.common_intercept
        assert added is not None, "the last record is a common intercept"
        opposite = DenseValues(added.first, -added.values)
        before = replay(self.state, (opposite,), self._layout.distribution)
        return CatchUp(b"".join(Snapshot(self.header, link, before).parts()), record.sent())

    def _reaches_back_to(self, since: int) -> bool:
        return bool(self._segments) and self._segments[0].start.round <= since

    def _is_short(self, since: int, newest: int) -> bool:
        """Return whether the records between two rounds are no longer than a snapshot."""
        size = 0
        for segment, last in self._segment_ends():
            if since <= segment.start.round < newest:
                if segment.path not in self._sent_sizes:
                    spans = self._spans(segment, segment.start.round, last)
                    self._sent_sizes[segment.path] = sum(span.end - span.begin for span in spans)
                size += self._sent_sizes[segment.path]
        return size <= snapshot_bytes(self._layout.size)

    def _segment_ends(self) -> Iterator[tuple[Segment, int]]:
        """Yield each segment with the number of its last round."""
        ends = [segment.start.round for segment in self._segments[1:]]
        return zip(self._segments, [*ends, self.position.round], strict=False)

    def _spans(self, segment: Segment, since: int, last: int) -> Iterator[_Span]:
        """Yield the byte ranges of a segment's records after round `since` up to round `last`."""
        begin = max(since, segment.start.round)
        if begin >= last:
            return
        with segment.path.open("rb") as file:
            file.seek(SEGMENT_HEADER_BYTES)
            skip_records(file, segment.start, begin - segment.start.round)
            for number in range(begin + 1, last + 1):
                yield _Span(segment.path, *sent_span(file, number))

    def close(self) -> None:
        """Release the lock, so that another process may write."""
        self._lock.release()
