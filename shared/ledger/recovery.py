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
    never_written,
    read_records,
)
from shared.ledger.snapshots import UnreadableError, read_snapshot


@dataclass(frozen=True)
class Recovered:
    """A ledger's folder after recovery.

    Attributes:
        segments: those that lead to the end without a gap, oldest first.
        start: where replaying begins: at a snapshot, or before round 1.
        position: the end, behind the last whole record.
        useless: snapshots after `start`, which are damaged or lie beside the chain.
        notes: what the operator should know.
    """

    segments: tuple[Segment, ...]
    start: Position
    position: Position
    useless: tuple[Path, ...]
    notes: tuple[str, ...]


def recover(folder: Path, header: LedgerHeader, layout: Layout) -> Recovered:
    """Find the last whole round of a ledger, and cut off what a crash left behind it.

    Raises:
        LedgerError: if something is damaged that no crash damages and no snapshot makes up for;
            the records are left as they are then.
        OSError: if the disk refuses.
    """
    for leftover in folder.glob(f"*{UNFINISHED}"):
        leftover.unlink()
    segments, problems = _chain(folder, header)
    if problems and not segments:
        raise LedgerError(problems[0])
    start, useless = _start(folder, header, layout, segments, problems)
    remaining = [segment for segment in segments if segment.start.round >= start.round]
    position, end = _scan(remaining, start)
    for number, path in snapshot_paths(folder).items():
        if number > position.round:
            raise LedgerError(f"{path}: it is there, but the records end at round {position.round}")
    if remaining and (torn := _cut(remaining[-1].path, end)):
        problems.append(
            f"{remaining[-1].path}: dropped {torn} bytes of round {position.round + 1}, which was "
            f"never completely written; the last whole round is {position.round}"
        )
    return Recovered(tuple(segments), start, position, tuple(useless), tuple(problems))


def _chain(folder: Path, header: LedgerHeader) -> tuple[list[Segment], list[str]]:
    """The segments that lead to the end, each to the next, and what is wrong with those before."""
    segments: list[Segment] = []
    for path in reversed(segment_paths(folder).values()):
        try:
            segment = read_segment(path)
            if segment.header != header:
                raise LedgerError(f"{path}: it belongs to another run, track or layout")
            if segments and last_hash(path) != segments[0].start.head:
                raise LedgerError(f"{path}: it does not lead to {segments[0].path.name}")
        except LedgerError as error:
            return segments, [str(error)]
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

    Returns:
        Where replaying begins, and the newer snapshots; why not there is added to the problems.
    """
    useless: list[Path] = []
    for path in reversed(snapshot_paths(folder).values()):
        try:
            position = read_snapshot(path, header, layout).position
            if not _joined(position, segments):
                raise LedgerError(f"{path}: the records do not lead through it")
            return position, useless
        except UnreadableError:
            raise
        except LedgerError as error:
            useless.append(path)
            problems.append(f"{error}; replayed from an older round instead")
    if not segments or segments[0].start.round:
        raise LedgerError("; ".join([*problems, f"{folder}: no way leads to the last round"]))
    return header.start, useless


def _joined(position: Position, segments: Sequence[Segment]) -> bool:
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
                crashed = isinstance(error, TornRecordError) or never_written(file.read())
                # a later segment is written together with its first record, whole or not at all
                begun = end > SEGMENT_HEADER_BYTES or segment.start.round == 0
                if not (crashed and begun and segment is segments[-1]):
                    raise LedgerError(f"{segment.path}: {error}") from error
    return position, end


def _cut(path: Path, end: int) -> int:
    """Cut a segment to its whole records; returns how many bytes were behind them."""
    with path.open("r+b") as file:
        torn = os.fstat(file.fileno()).st_size - end
        if torn:
            file.truncate(end)
            os.fsync(file.fileno())
    return torn
