"""What a ledger's only writer does on opening: find the last whole round and how to get there."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.errors import LedgerError
from shared.files import UNFINISHED
from shared.layout import Layout
from shared.ledger.reading import (
    Segment,
    last_hash,
    read_segment,
    segment_paths,
    snapshot_paths,
)
from shared.ledger.records import (
    SEGMENT_HEADER_BYTES,
    LedgerHeader,
    Position,
    TornRecordError,
    is_unwritten_record,
    read_records,
)
from shared.ledger.snapshots import UnreadableError, read_snapshot


@dataclass(frozen=True)
class Recovery:
    """A ledger's folder after recovery.

    Attributes:
        segments: those that lead to the end without a gap or damage, oldest first.
        start: where replaying begins: at a snapshot, or before round 1.
        position: the end, behind the last whole record.
        unusable_snapshots: snapshots that are damaged or lie beside the chain.
        notes: what the operator should know.
    """

    segments: tuple[Segment, ...]
    start: Position
    position: Position
    unusable_snapshots: tuple[Path, ...]
    notes: tuple[str, ...]


def recover(folder: Path, header: LedgerHeader, layout: Layout) -> Recovery:
    """Find the last whole round of a ledger, and cut off what a crash left behind it.

    Raises:
        LedgerError: if something is damaged that no crash damages and no snapshot makes up for;
            the records are left as they are then.
        OSError: if the disk refuses.
    """
    for leftover in folder.glob(f"*{UNFINISHED}"):
        leftover.unlink()
    segments, problems = _segments(folder, header)
    if problems and not segments:
        raise LedgerError(problems[0])
    start, useless = _start(folder, header, layout, segments, problems)
    later = [segment for segment in segments if segment.start.round >= start.round]
    position, end = _scan(later, start)
    for number, path in snapshot_paths(folder).items():
        if number > position.round:
            raise LedgerError(f"{path}: it is there, but the records end at round {position.round}")
    if later and (torn := _cut(later[-1].path, end)):
        problems.append(
            f"{later[-1].path}: dropped {torn} bytes of round {position.round + 1}, which was "
            f"never completely written; the last whole round is {position.round}"
        )
    kept = [*_segments_leading_to(start, segments[: len(segments) - len(later)], problems), *later]
    oldest = kept[0].start.round if kept else position.round
    for number, path in snapshot_paths(folder).items():
        if number < oldest and path not in useless:
            problems.append(f"{path}: the records after round {number} are missing")
    problems += [f"{path}: deleted; the rest makes up for it" for path in useless]
    return Recovery(tuple(kept), start, position, tuple(useless), tuple(problems))


def _segments(folder: Path, header: LedgerHeader) -> tuple[list[Segment], list[str]]:
    """The segments from the newest back to the first that is damaged, and what is wrong there."""
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


def _start(
    folder: Path,
    header: LedgerHeader,
    layout: Layout,
    segments: Sequence[Segment],
    problems: list[str],
) -> tuple[Position, list[Path]]:
    """The newest snapshot that is sound and that the records continue, or else round 0.

    The older ones are read too: what is kept to make up for damage should be known to be sound.

    Returns:
        Where replaying begins, and the snapshots that are of no use; why is added to the problems.
    """
    start: Position | None = None
    useless: list[Path] = []
    for path in reversed(snapshot_paths(folder).values()):
        try:
            position = read_snapshot(path, header, layout).position
            if start is None and not _records_continue_at(position, segments):
                raise LedgerError(f"{path}: the records do not lead through it")
            start = start or position
        except UnreadableError:
            raise
        except LedgerError as error:
            useless.append(path)
            problems.append(str(error))
    if start is None and (not segments or segments[0].start.round):
        raise LedgerError("; ".join([*problems, f"{folder}: no way leads to the last round"]))
    return start or header.start, useless


def _records_continue_at(position: Position, segments: Sequence[Segment]) -> bool:
    """Whether the records continue at a position, or end there."""
    later = [segment for segment in segments if segment.start.round >= position.round]
    if later:
        return later[0].start == position
    return not segments or last_hash(segments[-1].path) == position.head


def _scan(segments: Sequence[Segment], start: Position) -> tuple[Position, int]:
    """Go through whole records: the position behind them, and its place in the last segment."""
    position, end = start, SEGMENT_HEADER_BYTES
    for segment in segments:
        if segment.start != position:
            raise LedgerError(f"{segment.path}: round {position.round + 1} is missing before it")
        end = SEGMENT_HEADER_BYTES
        with segment.path.open("rb") as file:
            file.seek(end)
            try:
                for record in read_records(file, position):
                    position, end = record.position, end + record.size
            except LedgerError as error:
                file.seek(end)
                crashed = isinstance(error, TornRecordError) or is_unwritten_record(file.read())
                if not (crashed and segment is segments[-1]):
                    raise LedgerError(f"{segment.path}: {error}") from error
        if position.round and position == segment.start:
            raise LedgerError(f"{segment.path}: its first record, written with it, is not whole")
    return position, end


def _segments_leading_to(
    goal: Position, segments: Sequence[Segment], problems: list[str]
) -> list[Segment]:
    """Those of the segments before a position that lead there; clients may still need them."""
    leading: list[Segment] = []
    for segment in reversed(segments):
        position = segment.start
        try:
            with segment.path.open("rb") as file:
                file.seek(SEGMENT_HEADER_BYTES)
                for record in read_records(file, position):
                    position = record.position
            if position != goal:
                raise LedgerError(f"it ends at round {position.round}, not at {goal.round}")
        except LedgerError as error:
            problems.append(f"{segment.path}: {error}; clients before it get the snapshot")
            break
        leading.insert(0, segment)
        goal = segment.start
    return leading


def _cut(path: Path, end: int) -> int:
    """Cut a segment to its whole records; returns how many bytes were behind them."""
    with path.open("r+b") as file:
        torn = os.fstat(file.fileno()).st_size - end
        if torn:
            file.truncate(end)
            os.fsync(file.fileno())
    return torn
