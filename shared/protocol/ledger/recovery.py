"""Recovery when a ledger is opened: finding the last whole round, and a state to replay from."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from samara.shared.errors import LedgerError
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.ledger.reading import (
    Segment,
    last_hash,
    read_segment,
    segment_paths,
    snapshot_paths,
)
from samara.shared.protocol.ledger.records import (
    SEGMENT_HEADER_BYTES,
    LedgerHeader,
    Position,
    TornRecordError,
    UnreadableError,
    is_unwritten_record,
    read_records,
    read_snapshot,
)
from samara.shared.storage.files import UNFINISHED


@dataclass(frozen=True)
class Recovery:
    """The usable files of a ledger's folder after recovery.

    Attributes:
        segments: intact segments that lead to the last round without a gap, oldest first.
        start: position where replay starts: a snapshot's, or the one before round 1.
        position: position after the last whole record.
        unusable_snapshots: snapshots that are damaged, or do not belong to the chain.
        notes: sentences for the operator about repairs.
    """

    segments: tuple[Segment, ...]
    start: Position
    position: Position
    unusable_snapshots: tuple[Path, ...]
    notes: tuple[str, ...]


def recover(folder: Path, header: LedgerHeader, layout: Layout) -> Recovery:
    """Find the last whole round of a ledger, and cut off the remains of a crash after it.

    Raises:
        LedgerError: if a crash cannot explain the damage, and no snapshot replaces the damaged
            records. The records stay unchanged.
        OSError: if reading or writing fails.
    """
    for leftover in folder.glob(f"*{UNFINISHED}"):
        leftover.unlink()
    segments, problems = _read_sound_segments(folder, header)
    if problems and not segments:
        raise LedgerError(problems[0])
    start, unusable = _find_start(folder, header, layout, segments, problems)
    later = [segment for segment in segments if segment.start.round >= start.round]
    position, end = _read_whole_records(later, start)
    for number, path in snapshot_paths(folder).items():
        if number > position.round:
            raise LedgerError(
                f"{path}: the records end before this snapshot, at round {position.round}"
            )
    if later and (torn := _truncate(later[-1].path, end)):
        problems.append(
            f"{later[-1].path}: dropped {torn} bytes of round {position.round + 1}, which was "
            f"never completely written; the last whole round is {position.round}"
        )
    kept = [*_segments_leading_to(start, segments[: len(segments) - len(later)], problems), *later]
    oldest = kept[0].start.round if kept else position.round
    for number, path in snapshot_paths(folder).items():
        if number < oldest and path not in unusable:
            problems.append(f"{path}: the records after round {number} are missing")
    problems += [f"{path}: deleted; the other files replace it" for path in unusable]
    return Recovery(tuple(kept), start, position, tuple(unusable), tuple(problems))


def _read_sound_segments(folder: Path, header: LedgerHeader) -> tuple[list[Segment], list[str]]:
    """Return the segments after the newest damaged segment, and a description of its damage."""
    segments: list[Segment] = []
    for path in reversed(segment_paths(folder).values()):
        try:
            segment = read_segment(path)
        except LedgerError as error:
            return segments, [str(error)]
        if segment.header != header:
            return segments, [f"{path}: it belongs to another run, track or layout"]
        segments.insert(0, segment)
    return segments, []


def _find_start(
    folder: Path,
    header: LedgerHeader,
    layout: Layout,
    segments: Sequence[Segment],
    problems: list[str],
) -> tuple[Position, list[Path]]:
    """Find the newest valid snapshot after which the records continue, or round 0 without one.

    All older snapshots are checked too, so that no unusable snapshot is kept.

    Args:
        folder: folder of the ledger.
        header: track, run and layout of the ledger.
        layout: layout of the adapter.
        segments: intact segments, oldest first.
        problems: output list, to which the problems of unusable snapshots are added.

    Returns:
        The position to replay from, and the unusable snapshots.
    """
    start: Position | None = None
    unusable: list[Path] = []
    for path in reversed(snapshot_paths(folder).values()):
        try:
            position = read_snapshot(path, header, layout).position
            if start is None and not _records_continue_at(position, segments):
                raise LedgerError(f"{path}: the records do not continue this snapshot")
            start = start or position
        except UnreadableError:
            raise
        except LedgerError as error:
            unusable.append(path)
            problems.append(str(error))
    if start is None and (not segments or segments[0].start.round):
        raise LedgerError("; ".join([*problems, f"{folder}: no records lead to the last round"]))
    return start or header.start, unusable


def _records_continue_at(position: Position, segments: Sequence[Segment]) -> bool:
    """Return whether the records continue at a position, or end there."""
    later = [segment for segment in segments if segment.start.round >= position.round]
    if later:
        return later[0].start == position
    return not segments or last_hash(segments[-1].path) == position.head


def _read_whole_records(segments: Sequence[Segment], start: Position) -> tuple[Position, int]:
    """Read whole records; return the position after them and its offset in the last segment."""
    position, end = start, SEGMENT_HEADER_BYTES
    for segment in segments:
        if segment.start != position:
            raise LedgerError(
                f"{segment.path}: round {position.round + 1}, which comes before it, is missing"
            )
        end = SEGMENT_HEADER_BYTES
        with segment.path.open("rb") as file:
            file.seek(end)
            try:
                for record in read_records(file, position, segment.header.track):
                    position = record.position
                    end = end + record.size
            except LedgerError as error:
                file.seek(end)
                crashed = isinstance(error, TornRecordError) or is_unwritten_record(file.read())
                if not (crashed and segment is segments[-1]):
                    raise LedgerError(f"{segment.path}: {error}") from error
        if position.round and position == segment.start:
            raise LedgerError(f"{segment.path}: its first record is incomplete")
    return position, end


def _segments_leading_to(
    goal: Position, segments: Sequence[Segment], problems: list[str]
) -> list[Segment]:
    """Return the segments that lead to a position without a gap; clients may need them."""
    leading: list[Segment] = []
    for segment in reversed(segments):
        position = segment.start
        try:
            with segment.path.open("rb") as file:
                file.seek(SEGMENT_HEADER_BYTES)
                for record in read_records(file, position, segment.header.track):
                    position = record.position
            if position != goal:
                raise LedgerError(
                    f"the segment ends at round {position.round}, not at {goal.round}"
                )
        except LedgerError as error:
            problems.append(
                f"{segment.path}: {error}; clients at earlier rounds receive the snapshot"
            )
            break
        leading.insert(0, segment)
        goal = segment.start
    return leading


def _truncate(path: Path, end: int) -> int:
    """Cut a segment to its whole records, and return the number of bytes cut off."""
    with path.open("r+b") as file:
        torn = os.fstat(file.fileno()).st_size - end
        if torn:
            file.truncate(end)
            os.fsync(file.fileno())
    return torn
